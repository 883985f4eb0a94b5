"""What the tests of `vgp train` share, each made once for all the files that name this one as their plugin."""

import numpy as np
import pytest
from training_runs import begin, go, made, small_rows

from vgp import loop
from vgp.data import load


@pytest.fixture(scope="module")
def small():
    """The rows stand in the table while the tests of a file run, and not for those of other files."""
    with small_rows():
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "kinds.npz"
    np.savez(path, train=made(65, 0), valid=made(20, 1), test=made(21, 2))  # 65: five a turn are left out
    return str(path)


@pytest.fixture(scope="session")
def images(source):
    return load(source)


@pytest.fixture(scope="session")
def straight(tmp_path_factory, source, images, compiled):
    """Six epochs of two seeds without a break, and how many programs each epoch compiled.

    A test that trains "staged" asks for it even if it has no use for it: what comes first is what compiles.
    """
    advance, counts = loop._advance_turn, []

    def counted(*args):
        before = len(compiled)
        made = advance(*args)
        counts.append(len(compiled) - before)
        return made

    with small_rows(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_advance_turn", counted)
        run = begin(tmp_path_factory.mktemp("straight"), source, images)
        return run, go(run), counts
