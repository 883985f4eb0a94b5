"""Where this library keeps what it need not make or fetch twice."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`vgp` in the user's folder for caches, as XDG_CACHE_HOME has it."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vgp"
