# `make demo` and `make test` set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NATIVE := $(shell find csrc -type f 2>/dev/null)

# What is compiled is kept, and not compiled anew by each process that the tests start
unexport PYTHONDONTWRITEBYTECODE

# A worker for each core, files that take longest first (tests/seconds.json); make test COSTS=FILE
# prints what each file takes
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup --no-loadscope-reorder $(if $(COSTS),--costs $(COSTS))

.PHONY: setup demo test test-all lint typecheck cuda-check cuda-emulate cuda-emulate-all gpu-check gpu-bundle sanitize sanitize-all engines notebooks wheel wheel-check bench bench-peers clean

setup: $(STAMP)

# Rebuilt when a dependency, the build or the native sources change.
$(STAMP): pyproject.toml setup.py .ci/setup $(NATIVE)
	bash .ci/setup $(PYTHON) $(VENV)
	touch $(STAMP)

demo: setup
	$(BIN)/python -m benchmarks.demo --out demo

test: setup
	$(PYTEST)

# With every member of the operators' grids, and what takes longest
test-all: setup
	$(PYTEST) --all

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h %.cu %.cuh,$(NATIVE))
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_structure.py
	$(BIN)/python .ci/check_notebooks.py

typecheck: setup
	$(BIN)/pyright

cuda-check: setup
	bash .ci/cuda-check $(BIN)/python

# The CUDA sources, executed on the host: tests/emulated_cuda/README.md
cuda-emulate: setup
	$(BIN)/python -m tests.emulated_cuda

# Every order of threads, AddressSanitizer, all shapes and depths
cuda-emulate-all: setup
	$(BIN)/python -m tests.emulated_cuda --all

# In an environment with a CUDA build of torch: make gpu-check PYTHON=python OPTIONS='--stage smoke'
gpu-check:
	bash .ci/gpu-check $(PYTHON) $(OPTIONS)

# Compiled operators to carry to a machine with a GPU, for ARCHITECTURES (9.0); needs nvcc, no GPU
gpu-bundle: setup
	$(BIN)/python -m benchmarks.gpu_check.bundle $(if $(ARCHITECTURES),--architectures $(ARCHITECTURES))

# Address and undefined-behaviour sanitizers over the operators' tests, in a build of its own
sanitize: setup
	bash .ci/sanitize $(BIN)/python

# All shapes, depths and types of the operators' grids
sanitize-all: setup
	bash .ci/sanitize $(BIN)/python --all

# Ray and Spark, in .venv-engines: Java is installed where it is missing
engines: setup
	bash .ci/engines $(BIN)/python

notebooks: setup
	$(BIN)/python .ci/run_notebooks.py

# dist/mmoe-*.whl, with the compiled operators
wheel: setup
	bash .ci/wheel $(BIN)/python

wheel-check: setup
	bash .ci/wheel-check $(BIN)/python

bench: setup
	$(BIN)/python -m benchmarks.bench_ops
	$(BIN)/python -m benchmarks.mixture
	$(BIN)/python -m benchmarks.train
	$(BIN)/python -m benchmarks.predict
	$(BIN)/python -m benchmarks.score
	$(BIN)/python -m benchmarks.parallel
	$(BIN)/python -m tests.chaos train
	$(BIN)/python -m tests.chaos growth
	$(BIN)/python -m tests.chaos ranks

# What benchmarks.train and benchmarks.score compare with, in an environment of its own
bench-peers:
	[ -x .venv-peers/bin/python ] || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet torch==2.13.0 numpy pyarrow scikit-learn requests
	.venv-peers/bin/python -m pip install --quiet deepctr-torch==0.3.0 torch-rechub==0.9.0

clean:
	rm -rf build dist demo runs *.egg-info mmoe/*.so
