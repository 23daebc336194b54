# Everything runs in a virtual environment of its own, .venv, made on first use.
#   make demo        evaluate the demo model and references on phantoms, offline, and write a report
#   make demo CPU=1  the same; a first install takes PyTorch without CUDA, a download of some 200 MB in place of gigabytes
#   make test        the test suite
#   make quick       the tests to run while working, in about a minute: the arithmetic, the readers, the witness
#   make witness     compare every number and sentence that stored predictions give with those on record; UPDATE=1 writes them
#   make lint types  ruff, import-linter and mypy
#   make format      let ruff mend what it can
#   make docs        build the documentation into build/docs, and check its links
#   make tables      write the reference tables of the docs from the code
#   make dist        build a source distribution and a wheel into dist
#   make bench       measure speed and memory, into BENCHMARKS.md; half an hour on an idle machine
#   make demo-model  train the demo model again (two CPU cores, ten minutes)
#   make lock        write constraints.txt and hashes.txt anew, with the newest versions
# Versions are those of constraints.txt, which the tests were passed with, and pip checks each file against hashes.txt;
# CONSTRAINTS= installs the newest versions instead, without a check. PYTHON=python3.12 chooses another Python, VENV=folder
# another environment, JOBS=n runs tests in n processes. CPU=1 installs PyTorch without CUDA, from TORCH_INDEX.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
JOBS ?= 2
CPU ?=
UPDATE ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# No run of a model but that of the witness.
QUICK := tests/findings tests/geometry tests/predictions tests/scoring tests/witness tests/repository/test_package.py xbench

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
LOCK := $(if $(filter constraints.txt,$(CONSTRAINTS)),hashes.txt,$(CONSTRAINTS))
INSTALL := $(PIP) $(if $(LOCK),--constraint $(LOCK))
TAKES := $(if $(CPU),A few minutes.,Minutes: on Linux PyTorch comes with CUDA (gigabytes) unless you say CPU=1.)
# For setuptools, which pip fetches into an environment of its own to build xbench.
BUILD := $(if $(LOCK),--build-constraint $(LOCK))

# PyTorch without CUDA, alone and from its own index, so that no other package can come from there. On Linux its versions
# end in +cpu, which PyPI does not serve. macOS has no CUDA.
ifneq ($(and $(CPU),$(filter Linux,$(shell uname))),)
BUILDS := $(if $(CONSTRAINTS),$$(sed -nE 's/^(torch|torchvision)==[^+]*/&+cpu/p' $(CONSTRAINTS)),torch torchvision)
TORCH = $(PIP) --no-deps --retries 0 --timeout 15 --index-url $(TORCH_INDEX) $(BUILDS) || { echo "CPU=1: PyTorch without \
  CUDA cannot be had from $(TORCH_INDEX) (see above). Leave out CPU=1, or name a mirror with TORCH_INDEX=URL." >&2; exit 1; }
else
TORCH := true
endif

# $(call libraries,dev): what setup.cfg asks for, with the named of its extras. pip cannot check the hash of a folder, so xbench
# itself comes after, without what it needs.
libraries = { $(TORCH); } && $(BIN)/python containers/requirements.py $(1) >$(VENV)/requirements.txt && \
  $(INSTALL) --requirement $(VENV)/requirements.txt && $(PIP) --no-deps $(BUILD) --editable .

.PHONY: demo test quick witness lint types format docs tables dist bench demo-model lock clean

# $(call step,what it does and how long,command): the first command says so, the last how long it took.
step = @printf '\n%s\n' "$(1)"; began=$$(date +%s); $(2) || exit; echo "Took $$(($$(date +%s) - began)) s."

# Times are those of two CPU cores.
demo: $(VENV)/.installed
	$(call step,Step 1 of 3: the demo model on 200 drawn radiographs. About 15 seconds.,\
	  $(BIN)/xbench test --config demo)
	$(call step,Step 2 of 3: the same in three other settings and two references. About 45 seconds.,\
	  $(BIN)/xbench bench --config demo --report false)
	@printf '\n%s\n' "Step 3 of 3: intervals, tests, tables, the page, and figures. About ten seconds."
	@$(BIN)/xbench report runs

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(QUICK)

witness: $(VENV)/.installed-dev
	UPDATE=$(UPDATE) $(BIN)/python -m pytest -q tests/witness

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

tables: $(VENV)/.installed
	$(BIN)/python scripts/reference_tables.py

dist: $(VENV)/.installed-dev
	$(BIN)/uv build --no-build-isolation --python $(BIN)/python --out-dir dist

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py

demo-model: $(VENV)/.installed
	$(BIN)/python scripts/train_demo_model.py --out xbench/models/weights

# One file for every platform and Python that pyproject.toml names, so one version of each library; in a constraint,
# conditions would only be noise.
lock: $(VENV)/.installed-dev
	{ echo '# constraints.txt with the hashes of all files on PyPI: make lock writes this file.'; \
	  $(BIN)/uv pip compile setup.cfg --extra dev --extra classifiers --extra oracles --universal --upgrade --quiet \
	    --python-version 3.11.5 --fork-strategy fewest --no-header --no-annotate --no-emit-index-url --generate-hashes | sed 's/ ;.* \\$$/ \\/'; } > hashes.tmp
	{ echo '# The versions that the test suite passed with: make lock writes this file.'; \
	  grep -oE '^[a-z0-9._-]+==[^ ]+' hashes.tmp; } > constraints.txt
	mv hashes.tmp hashes.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("xbench needs Python 3.11.5 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11, 5) else 0)'
	$(PYTHON) -m venv $(VENV)
# An older pip takes hashes from a file of requirements alone.
	$(if $(LOCK),awk '/^[^ ]/ { found = /^pip==/ } found' $(LOCK) >$(VENV)/pip.txt && $(PIP) --requirement $(VENV)/pip.txt,$(PIP) --upgrade pip)

$(VENV)/.installed: setup.cfg pyproject.toml $(LOCK) | $(BIN)/python
	$(call step,Installing xbench and what it needs into $(VENV). $(TAKES),$(call libraries))
	@touch $@

$(VENV)/.installed-dev: setup.cfg pyproject.toml $(LOCK) | $(BIN)/python
	$(call step,Installing xbench and the development tools into $(VENV). $(TAKES),$(call libraries,dev classifiers) && \
	  $(INSTALL) --no-deps quantus)
	@touch $@ $(VENV)/.installed
