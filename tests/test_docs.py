"""The code on the pages runs, and the tables are those of the records."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

import vgp

ROOT = Path(__file__).parent.parent


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(("page", "index"), [("README.md", 0), ("docs/quickstart.md", 0), ("docs/extending.md", 0)])
def test_the_code_on_the_page_runs(page, index, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vgp, "fit", functools.partial(vgp.fit, steps=30, progress=False))
    space = {}
    exec(blocks(page)[index], space)
    if page == "README.md":
        assert space["draws"]["x"].shape == (1000,)
        assert (tmp_path / "posterior.vgp").exists()
    if page == "docs/extending.md":
        family = vgp.VGP(1, 4, 1, kernel=space["Cosine"](2.0), key=vgp.families.vgp.jr.key(0))
        assert family.sample(vgp.families.vgp.jr.key(1), 3).shape == (3, 1)


def test_the_tables_are_those_of_the_records():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_hold():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
