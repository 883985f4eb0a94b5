PYTHON ?= python3

.PHONY: demo test test-all lint clean

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

lint: .venv
	.venv/bin/ruff check src tests examples benchmarks
	.venv/bin/ruff format --check src tests examples benchmarks
	.venv/bin/pyright

clean:
	rm -rf .venv
