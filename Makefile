# `make demo` trains a small language model on 8 CPU devices; `make test` checks everything.
# Both make a virtual environment in .venv when there is none, and do nothing to it when it is fresh.
# CONSTRAINTS=constraints.txt installs the versions of that file in place of the newest.
# PYTHON=/path/to/python chooses the interpreter (3.11 or newer); the first one found is taken otherwise.

VENV ?= .venv
PACKAGES_VENV ?= .venv-packages
NEWEST_VENV ?= .venv-newest
PYTHON ?=
DEMO_FLAGS ?= --page=build/demo.html --verbosity=-1
# Neighbours share what they compile, so each worker takes a run of them, and what is left of another's at the end.
PYTEST_FLAGS ?= -n 2 --dist worksteal
BENCH_FLAGS ?=

py := $(VENV)/bin/python
CONSTRAINTS ?=
pip := $(py) -m pip install --disable-pip-version-check --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

.PHONY: demo check test test-slow test-packages test-newest test-wheel lint bench notebooks docs clean help

help:
	@echo "make demo    train a small language model on 8 CPU devices and print the plan it used"
	@echo "make check   ruff, pyright and one test of each file: a first verdict in a minute or two"
	@echo "make test    ruff, pyright and the tests"
	@echo "make test-slow  the long sweeps: every primitive under random shardings, random programs, random reshards"
	@echo "make test-packages  steps of public packages (equinox, diffrax, distrax, ...) in a virtual environment of their own"
	@echo "make test-newest  the guides and one test of each file on the newest Python of this machine, with the newest jax"
	@echo "make test-wheel  the wheel, installed into an empty virtual environment"
	@echo "make lint    ruff and pyright only"
	@echo "make bench   planning speed beside jaxlib's C++ passes, cost of a call beside jax.jit"
	@echo "make notebooks  run the notebooks and store what they show"
	@echo "make docs    the documentation site, in docs/_build/html; a warning is an error"
	@echo "make clean   remove the virtual environment and everything that was made"

demo: $(VENV)/.ready-demo
	$(py) examples/train_lm.py $(DEMO_FLAGS)

check: lint
	$(py) -m pytest --sample 1 -x $(PYTEST_FLAGS)

# Pyright takes one processor for the better part of a minute, so it runs beside the tests; what it finds is said after them.
test: $(VENV)/.ready-test
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	@mkdir -p build; $(py) -m pyright --pythonpath $(py) >build/pyright.txt 2>&1 & pyright=$$!; \
	$(py) -m pytest $(PYTEST_FLAGS); tests=$$?; \
	wait $$pyright || { cat build/pyright.txt; exit 1; }; \
	exit $$tests

# One more worker than cores: processes of jobs that fail wait for each other through a tenth of the time.
test-slow: $(VENV)/.ready-test
	$(py) -m pytest -m slow $(PYTEST_FLAGS) -n 3

# The packages bring dependencies of their own, so they do not go where everything else is tested. Where they cannot be
# installed, or one of them does not fit the others, that is said and nothing is run.
test-packages: $(py)
	@if $(MAKE) --no-print-directory $(PACKAGES_VENV)/.ready; then \
	  $(PACKAGES_VENV)/bin/python -m pytest tests/packages -m slow $(PYTEST_FLAGS); \
	else \
	  echo "the public packages could not be installed: their tests are skipped"; \
	fi

$(PACKAGES_VENV)/.ready: pyproject.toml
	$(py) -m venv --clear $(PACKAGES_VENV)
	$(PACKAGES_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -e '.[packages]'
	@touch $@

# Newer versions of Python get newer versions of jax: the oldest that are supported are not all that users install.
test-newest: $(py)
	@if $(MAKE) --no-print-directory $(NEWEST_VENV)/.ready; then \
	  set -ex; \
	  $(NEWEST_VENV)/bin/python -m pytest -m "" --sample 1 --whole tests/test_readme.py $(PYTEST_FLAGS); \
	  $(MAKE) --no-print-directory demo VENV=$(NEWEST_VENV) DEMO_FLAGS='$(DEMO_FLAGS) --steps=10'; \
	  $(NEWEST_VENV)/bin/python .ci/tried.py BUILD.md 'the guides, one test of each file, `make demo` of 10 steps'; \
	else \
	  echo "nothing was tested on a Python newer than that of $(VENV)"; \
	fi

$(NEWEST_VENV)/.ready: pyproject.toml
	@for candidate in $$($(py) .ci/newer_pythons.py); do \
	  echo "making $(NEWEST_VENV) with $$candidate"; \
	  if $$candidate -m venv --clear $(NEWEST_VENV) && \
	    $(NEWEST_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -e '.[test]'; then \
	    touch $@ $(NEWEST_VENV)/.ready-test $(NEWEST_VENV)/.ready-demo; exit 0; \
	  fi; \
	done; \
	rm -rf $(NEWEST_VENV); \
	echo "this machine has no Python newer than $$($(py) --version) in which the packages can be installed"; \
	exit 1

# From a directory of its own, so that the package is the installed one and not the checkout's.
test-wheel: $(py)
	rm -rf build/wheel && mkdir -p build/wheel
	$(py) -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir build/wheel .
	$(py) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --disable-pip-version-check --quiet --no-compile build/wheel/*.whl
	cd build/wheel && venv/bin/shardy-py plan jax.numpy:dot --mesh data=4,model=2 --args 'f32[64@data,256]' 'f32[256,512@model]'

lint: $(VENV)/.ready-test
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m pyright --pythonpath $(py)

bench: $(VENV)/.ready-demo
	$(py) benchmarks/propagation.py $(BENCH_FLAGS)
	$(py) benchmarks/dispatch.py

$(py):
	@set -e; \
	for candidate in $(if $(PYTHON),$(PYTHON),python3 python python3.14 python3.13 python3.12 python3.11 /usr/bin/python3); do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "making $(VENV) with $$($$candidate --version) ($$candidate)"; \
	    $$candidate -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	    exit 0; \
	  fi; \
	done; \
	echo "no Python 3.11 or newer with venv and pip was found; name one: make PYTHON=/path/to/python" >&2; \
	exit 1

$(VENV)/.ready-demo: pyproject.toml | $(py)
	$(pip) -e '.[examples]'
	@touch $@

$(VENV)/.ready-test: pyproject.toml | $(py)
	$(pip) -e '.[test]'
	@touch $@ $(VENV)/.ready-demo

notebooks: $(VENV)/.ready-test
	$(py) notebooks/make.py

docs: $(VENV)/.ready-docs
	$(py) -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "open docs/_build/html/index.html"

$(VENV)/.ready-docs: pyproject.toml | $(py)
	$(pip) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) $(PACKAGES_VENV) $(NEWEST_VENV) docs/_build docs/notebooks docs/reference/generated build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './$(PACKAGES_VENV)/*' -not -path './$(NEWEST_VENV)/*' -prune -exec rm -rf {} +
