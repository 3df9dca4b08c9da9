# `make demo` and `make test` set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NATIVE := $(shell find csrc -type f 2>/dev/null)

.PHONY: setup demo test lint typecheck cuda-check gpu-check sanitize notebooks bench clean

setup: $(STAMP)

# Rebuilt when a dependency, the build or the native sources change.
$(STAMP): pyproject.toml setup.py .ci/setup $(NATIVE)
	bash .ci/setup $(PYTHON) $(VENV)
	touch $(STAMP)

demo: setup
	$(BIN)/python -m benchmarks.demo --out demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h %.cu %.cuh,$(NATIVE))
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_notebooks.py

typecheck: setup
	$(BIN)/pyright

cuda-check: setup
	bash .ci/cuda-check $(BIN)/python

# In an environment with a CUDA build of torch: make gpu-check PYTHON=python
gpu-check:
	bash .ci/gpu-check $(PYTHON)

# Address and undefined-behaviour sanitizers over the operators' tests, in a build of its own
sanitize: setup
	bash .ci/sanitize $(BIN)/python

notebooks: setup
	$(BIN)/python .ci/run_notebooks.py

bench: setup
	$(BIN)/python -m benchmarks.bench_ops
	$(BIN)/python -m benchmarks.mixture

clean:
	rm -rf build dist demo runs *.egg-info mmoe/*.so
