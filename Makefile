PYTHON ?= python3

# The newest Python that is supported, where it is installed: the other end of the range of dependencies.
NEWEST := $(shell python3.13 -c 'import sys; print(sys.executable)' 2>/dev/null || ls $(HOME)/.pyenv/versions/3.13*/bin/python3.13 2>/dev/null | head -n 1)

.PHONY: demo test test-all test-x64 test-newest lint clean

.venv: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vgp needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --editable '.[dev,arviz,flows,pymc]'
	touch .venv

demo: .venv
	.venv/bin/vgp demo

test: .venv lint
	.venv/bin/pytest

test-all: .venv lint
	.venv/bin/pytest -m ''

# The same tests in double precision.
test-x64: .venv
	JAX_ENABLE_X64=1 .venv/bin/pytest

# The tests that meet other libraries: with Python 3.13 come newer versions of JAX, PyMC and ArviZ.
test-newest:
ifeq ($(NEWEST),)
	@echo "Python 3.13 is not installed here: its tests are left out."
else
	test -x .venv-newest/bin/pytest || $(NEWEST) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --disable-pip-version-check --editable '.[dev,arviz,flows,pymc]'
	.venv-newest/bin/pytest -m newest
endif

lint: .venv
	.venv/bin/ruff check src tests examples benchmarks
	.venv/bin/ruff format --check src tests examples benchmarks
	.venv/bin/pyright

clean:
	rm -rf .venv .venv-newest
