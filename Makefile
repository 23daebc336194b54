# Everything runs in a virtual environment of its own, .venv, made on first use.
#   make demo        evaluate the demo model and references on phantoms, offline, and write a report
#   make test        the test suite
#   make lint types  ruff and mypy
#   make format      let ruff mend what it can
#   make docs        build the documentation into build/docs, and check its links
#   make bench       measure speed and memory, into BENCHMARKS.md; a quarter of an hour on an idle machine
#   make demo-model  train the demo model again (CPU, under 20 minutes)
# PYTHON=python3.12 chooses another Python, CONSTRAINTS=file pins versions, JOBS=n runs tests in n processes.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?=
JOBS ?= 2

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

.PHONY: demo test lint types format docs bench demo-model clean

demo: $(VENV)/.installed
	$(BIN)/python -m xbench.cli test --config demo.yaml
	$(BIN)/python -m xbench.cli bench --config demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy xbench callbacks

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The variable silences a notice of the theme about another program. With --quiet, --strict would not see any warning.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py

demo-model: $(VENV)/.installed
	$(BIN)/python scripts/train_demo_model.py --out xbench/models/weights

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("xbench needs Python 3.11 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip

$(VENV)/.installed: setup.cfg pyproject.toml | $(BIN)/python
	@echo "Installing xbench and what it needs into $(VENV); PyTorch alone may take some minutes."
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: setup.cfg pyproject.toml | $(BIN)/python
	@echo "Installing xbench and the development tools into $(VENV); PyTorch alone may take some minutes."
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
