"""Writes the tables of the README and the docs from the records in `results/`, between their markers.

    python benchmarks/tables.py [--check]

A marker is `<!-- table: NAME -->`; its table, a function of that name in one of the files of `pages/`, ends at
`<!-- end -->`. With `--check` nothing is written, and a table that differs from its record ends the program with an
error.
"""

import re
import sys

from pages import deep_models, discrete, draw, grids, posteriors
from pages.common import ROOT

PAGES = ("README.md", *(f"docs/{name}.md" for name in ("benchmarks", "deep_models", "discrete", "draw", "grids")))


def written(name: str) -> str:
    """The table of this name."""
    (made,) = (vars(page)[name] for page in (posteriors, deep_models, draw, discrete, grids) if name in vars(page))
    return made()


def main() -> None:
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()

        def fill(match):
            return f"<!-- table: {match[1]} -->\n{written(match[1])}\n<!-- end -->"

        new = re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)
        if new != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale and "--check" in sys.argv:
        sys.exit(f"The tables of {', '.join(stale)} differ from results/; run: python benchmarks/tables.py")
    print("written: " + (", ".join(stale) or "nothing, all tables are up to date"))


if __name__ == "__main__":
    main()
