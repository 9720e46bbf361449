# make demo            install, then train the article's CNN on real data
# make test            install, then run the whole suite, on JAX and on TensorFlow
# make test-all        the same with the long runs
# make demo BACKEND=tensorflow          another backend
# make test BACKEND=tensorflow          on this one only
# make test KERAS=3.13.2                another Keras
# make gpu-check       train on this machine's accelerators and on one of them, compare

PYTHON ?= python3
BACKEND ?=
KERAS ?=
JAX ?=
WORKERS ?= 2
GPU_PACKAGES ?= jax[cuda12] tensorflow[and-cuda]

suffix := $(if $(KERAS),-keras-$(KERAS))$(if $(JAX),-jax-$(JAX))
demo_backend := $(or $(BACKEND),jax)
test_backends := $(or $(BACKEND),jax tensorflow)
demo_env := .venv-demo-$(demo_backend)
test_env := .venv-test$(suffix)
gpu_env := .venv-gpu
# Without NVIDIA's driver the test environment does: it says what it cannot check.
GPU_PYTHON ?= $(if $(shell command -v nvidia-smi),$(gpu_env),$(test_env))/bin/python
# The demo's backend, with the build for NVIDIA's GPUs where there is a driver. Without
# one TensorFlow has a build of half the size.
gpu_build_jax := jax[cuda12]
gpu_build_tensorflow := tensorflow[and-cuda]
machine := $(shell uname -s)-$(shell uname -m)
small_build := $(filter Linux-x86_64-tensorflow-,$(machine)-$(demo_backend)-$(shell command -v nvidia-smi))
demo_packages := $(if $(small_build),-e ".[examples]" tensorflow-cpu,-e ".[$(demo_backend),examples]")
demo_packages += $(if $(shell command -v nvidia-smi),$(gpu_build_$(demo_backend)))
pins := $(if $(KERAS),keras==$(KERAS)) $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))

.PHONY: demo test test-all lint types build gpu-check clean

demo: $(demo_env)/.installed
	KERAS_BACKEND=$(demo_backend) TF_CPP_MIN_LOG_LEVEL=2 $(demo_env)/bin/python examples/cifar10_cnn.py $(ARGS)

# On the first backend everything. Tests that start processes choose the backends of
# those themselves, and some hold whatever the backend: neither runs a second time.
which = $(if $(filter $*,$(firstword $(test_backends))),,not process and not once and )

test: marks := not soak
test: lint types $(test_backends:%=test-on-%)

test-all: marks := (soak or not soak)
test-all: lint types $(test_backends:%=test-on-%)

# 5: nothing left to run, where ARGS has chosen tests of the first backend only.
test-on-%: $(test_env)/.installed
	KERAS_BACKEND=$* $(test_env)/bin/python -m pytest -n $(WORKERS) --dist loadgroup \
	    -m "$(which)$(marks)" $(ARGS) \
	    $(if $(which),|| [ $$? -eq 5 ])

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
	$(demo_env)/bin/python -m pip install -q -c constraints.txt $(demo_packages)
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
