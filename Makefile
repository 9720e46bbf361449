# make demo            install, then train the article's CNN on real data
# make test            install, then run the whole suite
# make test-all        the same with the long runs
# make demo BACKEND=tensorflow          another backend
# make test KERAS=3.13.2                another Keras
# make gpu-check       train on this machine's accelerators and on one of them, compare

PYTHON ?= python3
BACKEND ?= jax
KERAS ?=
JAX ?=
WORKERS ?= 2
GPU_PACKAGES ?= jax[cuda12] tensorflow[and-cuda]

suffix := $(if $(KERAS),-keras-$(KERAS))$(if $(JAX),-jax-$(JAX))
demo_env := .venv-demo-$(BACKEND)
test_env := .venv-test$(suffix)
gpu_env := .venv-gpu
# Without NVIDIA's driver the test environment does: it says what it cannot check.
GPU_PYTHON ?= $(if $(shell command -v nvidia-smi),$(gpu_env),$(test_env))/bin/python
pins := $(if $(KERAS),keras==$(KERAS)) $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))

.PHONY: demo test test-all lint types build gpu-check clean

demo: $(demo_env)/.installed
	KERAS_BACKEND=$(BACKEND) TF_CPP_MIN_LOG_LEVEL=2 $(demo_env)/bin/python examples/cifar10_cnn.py $(ARGS)

test: $(test_env)/.installed lint types
	$(test_env)/bin/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak" $(ARGS)

test-all: $(test_env)/.installed lint types
	$(test_env)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

lint: $(test_env)/.installed
	$(test_env)/bin/ruff check .
	$(test_env)/bin/ruff format --check .

types: $(test_env)/.installed
	$(test_env)/bin/mypy

build: $(test_env)/.installed
	rm -rf dist
	$(test_env)/bin/python -m build --outdir dist .
	$(test_env)/bin/twine check --strict dist/*

gpu-check: $(patsubst %/bin/python,%/.installed,$(filter .venv-%,$(GPU_PYTHON)))
	$(GPU_PYTHON) -m tests.gpu_check $(ARGS)

$(demo_env)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(demo_env)
	$(demo_env)/bin/python -m pip install -q -c constraints.txt -e ".[$(BACKEND),examples]"
	touch $@

$(test_env)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(test_env)
	$(test_env)/bin/python -m pip install -q -c constraints.txt -e ".[jax,examples,test]" $(pins)
	touch $@

$(gpu_env)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(gpu_env)
	$(gpu_env)/bin/python -m pip install -q -c constraints.txt -e . $(GPU_PACKAGES)
	touch $@

clean:
	rm -rf .venv-demo-* .venv-test* $(gpu_env) dist .pytest_cache .mypy_cache .ruff_cache
