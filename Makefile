# Two commands do everything on a fresh machine: `make accept` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOT := $(filter 0,$(shell id -u))
# `required`: a lab that cannot start fails the run; otherwise it is named as left out.
export SEATRIAL_LABS ?= $(if $(ROOT),required,optional)

.PHONY: help setup packages accept test check soak bench gpu lock clean
.DEFAULT_GOAL := help

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.ready: requirements.lock pyproject.toml
	tools/venv $(PYTHON) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

setup: $(VENV)/.ready  ## make the environment in .venv

packages:
	tools/packages

accept: setup  ## set up, then try this machine
	$(BIN)/pytest --cluster=local

test: packages setup  ## set up, then all tests of this project, labs included
	$(BIN)/pytest tests

check: setup  ## lint, types, unit tests: at most a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 tests/unit

soak: packages setup  ## faults and clean trials again and again; figures to docs/soak.md
	$(BIN)/python -m bench.soak

bench: setup  ## what the harness costs; figures to docs/bench.md
	$(BIN)/python -m bench

gpu: setup  ## the CUDA paths on a machine with a GPU; figures to docs/measured.md
	$(BIN)/python -m bench.gpu

lock:  ## pin versions and hashes anew (needs uv)
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.10 \
	  --extra torch --extra xdist --extra allure --extra s3 --extra dev -o requirements.lock pyproject.toml

clean:  ## remove the environment and the caches, never a run
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
