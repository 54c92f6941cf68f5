# The project's commands. They need Python 3.11 or newer and keep everything they install in .venv.

PYTHON ?= python3
ARGS ?=
SIZE ?= --tiny
PINNER ?= pip-compile

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))
BENCHED := $(BENCHMARKS:%=%.run)

.PHONY: help demo test bench $(BENCHED) format pins clean

help:
	@echo 'make demo     see it run: a database, a stream and its consumers, nothing to set up'
	@echo 'make test     every check: format, lint, types, imports, tests        ARGS="-k cron"'
	@echo 'make bench    every benchmark, at a tiny size                         SIZE=  for the full one'
	@echo 'make format   put the code into shape'
	@echo 'make pins     pin the newest packages in requirements/ (needs pip-tools)'
	@echo 'make clean    remove .venv and whatever else these commands made'
	@echo
	@echo 'PYTHON=python3.12 make test   with another Python than python3'

demo: $(VENV)/.runtime
	@$(BIN)/sqlstreams demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest --numprocesses 3 --dist loadfile $(ARGS)

bench: $(BENCHED)

$(BENCHED): $(VENV)/.dev
	@echo "== $(basename $@) $(SIZE)"
	@$(BIN)/python $(basename $@) $(SIZE)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

# The machine's own pip settings are left aside, so that the hashes are those of the public files.
pins:
	@for name in runtime dev; do \
	  echo "Pinning requirements/$$name.txt"; \
	  env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u PIP_INDEX_URL -u PIP_CONSTRAINT PIP_CONFIG_FILE=/dev/null \
	    $(PINNER) --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
	    --no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --output-file requirements/$$name.txt requirements/$$name.in || exit 1; \
	  sed -i.old '/considered to be unsafe/d' requirements/$$name.txt && rm requirements/$$name.txt.old; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp bears the version, so that another PYTHON makes the environment anew.
$(VENV)/.python-$(PYTHON_VERSION):
	@case '$(PYTHON_VERSION)' in \
	  '') echo "'$(PYTHON)' does not run. Name a Python 3.11 or newer: PYTHON=/path/to/python3 make ..." >&2; exit 1;; \
	  2.*|3.?|3.10) echo "'$(PYTHON)' is Python $(PYTHON_VERSION), and 3.11 or newer is needed: PYTHON=/path/to/python3 make ..." >&2; exit 1;; \
	esac
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo 'Making $(VENV) with Python $(PYTHON_VERSION)'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.python-$(PYTHON_VERSION) requirements/runtime.txt pyproject.toml
	@echo 'Installing requirements/runtime.txt'
	@$(PIP) install --require-hashes -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.python-$(PYTHON_VERSION) requirements/dev.txt pyproject.toml
	@echo 'Installing requirements/dev.txt'
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.runtime
