# Everything runs in a virtual environment of its own, .venv, made on first use.
#   make demo        evaluate the demo model and references on phantoms, offline, and write a report
#   make demo CPU=1  the same; a first install takes PyTorch without CUDA, a download of some 200 MB in place of gigabytes
#   make test        the test suite
#   make lint types  ruff, import-linter and mypy
#   make format      let ruff mend what it can
#   make docs        build the documentation into build/docs, and check its links
#   make bench       measure speed and memory, into BENCHMARKS.md; ten minutes on an idle machine
#   make demo-model  train the demo model again (two CPU cores, ten minutes)
#   make lock        write constraints.txt anew, with the newest versions
# Versions are those of constraints.txt, which the tests were passed with; CONSTRAINTS= installs the newest instead.
# PYTHON=python3.12 chooses another Python, VENV=folder another environment, JOBS=n runs tests in n processes, CPU=1
# installs PyTorch without CUDA.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
JOBS ?= 2
CPU ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Of two builds of one version, pip takes the local one: torch 2.14.1+cpu before 2.14.1.
TAKES := $(if $(CPU),A few minutes.,Minutes: on Linux PyTorch comes with CUDA (gigabytes) unless you say CPU=1.)
TORCH := $(if $(CPU),--extra-index-url https://download.pytorch.org/whl/cpu)
# For setuptools, which pip fetches into an environment of its own to build xbench.
BUILD := $(if $(CONSTRAINTS),--build-constraint $(CONSTRAINTS))

.PHONY: demo test lint types format docs bench demo-model lock clean

# $(call step,what it does and how long,command): the first command says so, the last how long it took.
step = @printf '\n%s\n' "$(1)"; began=$$(date +%s); $(2) || exit; echo "Took $$(($$(date +%s) - began)) s."

# Times are those of two CPU cores.
demo: $(VENV)/.installed
	$(call step,Step 1 of 3: the demo model on 200 drawn radiographs. About half a minute.,\
	  $(BIN)/xbench test --config demo)
	$(call step,Step 2 of 3: the same in three other settings and two references. About two and a half minutes.,\
	  $(BIN)/xbench bench --config demo --report false)
	@printf '\n%s\n' "Step 3 of 3: intervals, tests, tables, figures and the page. About half a minute."
	@$(BIN)/xbench report runs

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports

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

# One file for every platform and Python that pyproject.toml names; in a constraint, conditions would only be noise.
lock: $(VENV)/.installed-dev
	{ echo '# The versions that the test suite passed with: make lock writes this file.'; \
	  $(BIN)/uv pip compile setup.cfg --extra dev --universal --upgrade --python-version 3.11.5 --quiet \
	    --no-header --no-annotate --no-emit-index-url | sed 's/ ;.*//'; } > constraints.tmp
	mv constraints.tmp constraints.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("xbench needs Python 3.11.5 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11, 5) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip

$(VENV)/.installed: setup.cfg pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(call step,Installing xbench and what it needs into $(VENV). $(TAKES),$(INSTALL) $(TORCH) $(BUILD) --editable .)
	@touch $@

$(VENV)/.installed-dev: setup.cfg pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(call step,Installing xbench and the development tools into $(VENV). $(TAKES),\
	  $(INSTALL) $(TORCH) $(BUILD) --editable '.[dev]')
	@touch $@ $(VENV)/.installed
