# Two commands matter: `make run` answers a prompt, `make test` checks everything.
# Both set up what they need; stamp files in .venv make later runs start at once.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
# An extra package index for torch, for example one with CUDA or CPU-only builds.
TORCH_INDEX ?=
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# Tests compute with two threads; see worker_environment in foredraft/config.py.
export GOMP_SPINCOUNT ?= 10000

# Triton interprets either every kernel of a process or none.
KERNEL_TESTS := TRITON_INTERPRET=1 $(BIN)/pytest -q tests/kernels

PROMPT ?= Explain in three sentences why the sky is blue.

.DEFAULT_GOAL := help
.PHONY: help run up test test-slow lint types check-imports check-protos proto bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: $(VENV)/model.stamp ## answer PROMPT="…" through the whole stack and print statistics
	@$(BIN)/foredraft run "$$PROMPT"

up: $(VENV)/model.stamp ## start the stack and leave it serving (flags in ARGS="…")
	@$(BIN)/foredraft up $(ARGS)

test: lint types check-imports check-protos $(VENV)/model.stamp ## every check and every test but the slow ones
	$(BIN)/pytest -q -m "not slow" --numprocesses 2 --ignore tests/kernels
	$(KERNEL_TESTS) -m "not slow" --numprocesses 2

test-slow: $(VENV)/dev.stamp $(VENV)/model.stamp ## the tests that take minutes
	$(BIN)/pytest -q -m slow --ignore tests/kernels
	$(KERNEL_TESTS) -m slow

lint: $(VENV)/dev.stamp ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp ## mypy --strict
	$(BIN)/mypy

check-imports: $(VENV)/dev.stamp ## who may import whom
	$(BIN)/lint-imports

check-protos: $(VENV)/dev.stamp ## lint the protos and compare them with the committed image
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against protos/foredraft.binpb

proto: $(VENV)/dev.stamp ## make the stubs in foredraft/v1 again
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. --grpc_python_out=. \
		protos/foredraft/v1/*.proto

proto-image: $(VENV)/dev.stamp
	$(BIN)/buf build protos --exclude-source-info -o protos/foredraft.binpb

bench: $(VENV)/model.stamp ## speed with and without guesses: ARGS="--prompts FILE [--peer transformers]"
	@$(BIN)/foredraft bench compare $(ARGS)

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

export PROMPT

$(VENV)/worker.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed; name it with PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing Foredraft and its dependencies: some minutes and about 2.3 GB the first time"
	@$(PIP_INSTALL) --editable '.[worker]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/worker.stamp
	@echo "Installing the development tools"
	@$(PIP_INSTALL) --editable '.[worker,dev]'
	@touch $@

# The model itself stays in the user's cache; asking for its path fetches it.
$(VENV)/model.stamp: $(VENV)/worker.stamp
	@$(BIN)/foredraft models path >$@.tmp
	@mv $@.tmp $@
