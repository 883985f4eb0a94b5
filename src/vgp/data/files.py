"""Where the files of images that the user has are looked for, and the sum by which their pixels are known."""

import hashlib
import os
from pathlib import Path

import numpy as np

from ..cache import cache_folder


def folders() -> list[Path]:
    """Where the files may be: the folder in VGP_DATA, and the one for this library's caches."""
    named, cache = os.environ.get("VGP_DATA"), cache_folder() / "data"
    return [Path(named).expanduser(), cache] if named else [cache]


def places() -> str:
    """The same folders, in words."""
    return " or ".join(f"'{folder}'" for folder in folders())


def sha256(rows: np.ndarray) -> str:
    """Of the bytes of all rows, one after the other."""
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()
