# Every target sets itself up: the virtual environment `.venv` is made if it is missing or out of date.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VERIFIES := $(VENV)/.ready-to-verify
BASE_PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
WORKERS ?= 2
EXAMPLES ?= 2000
SEED ?= $(shell date +%s)
OPTIONS ?=

.PHONY: help setup verify faults test lint engines unneeded mutate mutate-impl report screenshots bench steering gpu soak docs docs-check

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(READY) ## the virtual environment with everything in it
	@:

# pip compiles thousands of modules of which few are ever imported; Python compiles these, and keeps what it compiled.
unexport PYTHONDONTWRITEBYTECODE
define install
	@test -n "$(BASE_PYTHON)" || { echo "Python 3.11 or later is needed: set BASE_PYTHON" >&2; exit 1; }
	@echo "setting up $(VENV) with $(BASE_PYTHON)"
	@test -x $(BIN)/python || $(BASE_PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(1)]'
endef

$(READY): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(VERIFIES) $@

$(VERIFIES): pyproject.toml constraints.txt
	$(call install,verify)
	@touch $@

verify: $(VERIFIES) ## prove every law, check our implementation, show every known bug: OPTIONS=--fresh (2 minutes)
	$(BIN)/slotproof verify $(OPTIONS)

test: $(READY) ## the test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(READY) ## ruff, mypy --strict, and the lint that finds Python control flow in the spec
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m slotproof.spec_lint spec/

# Not a part of `verify`: it takes many minutes, and the nightly workflow does it.
faults: $(READY) ## find every known bug from nothing, write docs/faults.json and docs/status.md
	$(BIN)/slotproof faults --search --keep && code=0 || code=$$?; $(BIN)/slotproof docs && exit $$code

# A release that breaks a law is a finding, not a failure of this command: all releases are checked.
engines: $(READY) ## check every release of every engine, replay every kept trace, write docs/findings.json and docs/functions.json
	$(BIN)/slotproof engines

unneeded: $(READY) ## drop each promise, choice and fit in turn, write docs/unneeded.json (takes long)
	$(BIN)/slotproof prove --minimal --json docs/unneeded.json

report: $(READY) ## pages on which every finding can be stepped through, build/report/index.html
	$(BIN)/slotproof report -o build/report

# Findings on real releases; @last is the step that does harm. README.md and docs/explorer.md show two of the pictures.
SHOTS ?= insert_under_reader insert_under_reader@last stale_tail_after_overrun copy_on_write_steals_locks
screenshots: $(READY) ## pictures of the explorer from real runs, build/screenshots/*.png
	PYTHONPATH=. $(BIN)/python tests/screenshots.py build/screenshots $(SHOTS)

# Not a part of `verify`: it takes half an hour.
mutate: $(READY) ## edit every transition, see that a law refutes the edits, write docs/mutation.json and docs/mutation.md
	$(BIN)/slotproof mutate spec --keep && code=0 || code=$$?; $(BIN)/slotproof docs && exit $$code

# Not a part of `verify` either: 200 mutants take about an hour.
mutate-impl: $(READY) ## change impl/ in one place at a time, see that check or a test notices, write docs/mutation_impl.*
	$(BIN)/slotproof mutate impl --keep && code=0 || code=$$?; $(BIN)/slotproof docs && exit $$code

bench: $(READY) ## operations a second of the lock-step, times of --help, and our implementation beside an engine
	$(BIN)/python -m benchmarks

steering: $(READY) ## what steering by coverage gains, docs/measurements/steering.md (takes long)
	$(BIN)/python -m benchmarks.steering

gpu: $(READY) ## on a CUDA device: its tests, the check, and the bench, whose numbers are kept in docs/measurements
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(BIN)/python -m pytest -m cuda && $(BIN)/slotproof check ours --device cuda && \
	  $(BIN)/python -m benchmarks --device cuda --keep; \
	else echo "no CUDA device: nothing was run"; fi

soak: SEED := $(SEED)
soak: $(READY) ## tests and check with many more random runs: EXAMPLES=20000 SEED=1
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	$(BIN)/slotproof check ours --examples $(EXAMPLES) --seed $(SEED)

docs: $(READY) ## write the generated documents
	$(BIN)/slotproof docs

docs-check: $(READY) ## fails if a generated document is out of date
	$(BIN)/slotproof docs --check
