# From a fresh clone with python3 and make: `make demo`, `make test`.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FOR_DEMO := $(VENV)/.installed-demo
FOR_DOCS := $(VENV)/.installed-docs
TORCHRL := $(CURDIR)/$(VENV)/torchrl
# What depends on the version of tensordict: the lazy object, round trips, replay buffers, torchrl.
TORCHRL_TESTS := tests/lazy tests/test_packaging.py::test_torchrl_accepts_the_tensordict_that_it_is_tested_with

# What depends on the versions of the libraries; the whole suite with TESTS=tests.
TESTS ?= tests/core tests/formats tests/dataset tests/lazy

.DEFAULT_GOAL := help
.PHONY: mutation help install demo test test-torchrl test-oldest test-newest test-xarray test-slow test-faults fuzz bench bench-far lint format types doctest docs screenshots dist clean

help:
	@echo "make demo [STORE=path]  open, preprocess, write, and read again with xarray and with tensordict"
	@echo "make test               the tests, in a few minutes (WORKERS=2 processes)"
	@echo "make test-torchrl       the tests of what tensordict does, with the current torchrl and the tensordict it asks for"
	@echo "make test-oldest        tests with the oldest versions that are supported, in build/oldest (PYTHON=python3.11)"
	@echo "make test-newest        tests with the newest versions there are, in build/newest (PYTHON=python3.13)"
	@echo "make test-xarray        xarray's own suite, through this engine; CI runs it"
	@echo "make test-slow          xarray's own suite, every corpus through every writer, worker processes"
	@echo "make test-faults        killed writers, clusters, every scheduler, mutated stores: the long ones, before a release"
	@echo "make fuzz               open mutants of small stores of every kind (ARGS='--count 20000 --seed 1 --report found.jsonl')"
	@echo "make mutation           which changes of core no test notices (mutmut; ARGS="rules voting" for some modules)"
	@echo "make bench              what reading takes, beside tensordict and xarray (ARGS=--tiny: whether it runs)"
	@echo "make bench-far          training from a store far away, beside insitubatch (PYTHON=python3.13), into docs/performance.md"
	@echo "make lint               ruff format --check and ruff check"
	@echo "make types              mypy --strict"
	@echo "make doctest            the examples in docstrings"
	@echo "make docs               the documentation, into docs/_build/html; a warning is an error"
	@echo "make screenshots        the pictures in docs/_static again (needs chromium)"
	@echo "make dist               wheel and sdist, checked, and the wheel tried in an environment of its own"
	@echo "make clean              remove everything that was made here, the virtual environment included"

install: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev]"
	touch $@ $(FOR_DEMO)

# What users install, without the tools of developers.
$(FOR_DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

demo: $(FOR_DEMO)
	$(BIN)/python examples/demo.py $(STORE)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

# Into a folder of its own: everything else, torch above all, is that of the virtual environment.
$(TORCHRL)/.installed: constraints-torchrl.txt | $(INSTALLED)
	rm -rf $(TORCHRL)
	$(BIN)/python -m pip install --quiet --no-deps --target $(TORCHRL) --requirement constraints-torchrl.txt
	touch $@

test-torchrl: $(TORCHRL)/.installed
	PYTHONPATH=$(TORCHRL) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS) $(TORCHRL_TESTS)

# Environments of their own: nothing of them is that of the virtual environment.
build/%/bin/python:
	$(PYTHON) -m venv build/$*
	$@ -m pip install --quiet --upgrade pip

build/far/.installed: pyproject.toml | build/far/bin/python
	build/far/bin/python -m pip install --quiet --editable . insitubatch obstore
	touch $@

build/oldest/.installed: pyproject.toml constraints-oldest.txt | build/oldest/bin/python
	build/oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable ".[test]"
	touch $@

# First what users have, and then what only the tests need: their versions must not hold back the others.
build/newest/.installed: pyproject.toml constraints-newest.txt | build/newest/bin/python
	build/newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --constraint constraints-newest.txt --editable . distributed pyarrow
	build/newest/bin/python -m pip install --quiet --constraint constraints-newest.txt --editable ".[test]"
	touch $@

test-oldest test-newest: test-%: build/%/.installed
	build/$*/bin/python -m pip list
	build/$*/bin/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS) $(TESTS)

test-xarray: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not faults" $(ARGS) tests/xarray_suite

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not faults" $(ARGS)

test-faults: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow and faults" $(ARGS)

fuzz: $(INSTALLED)
	$(BIN)/python tests/support/fuzzing.py $(ARGS)

mutation: $(INSTALLED)
	$(BIN)/python -m pip install --quiet "mutmut>=3.8,<3.9"
	$(BIN)/python tests/mutation.py --workers $(WORKERS) $(ARGS)

bench-far: build/far/.installed
	build/far/bin/python -m benchmarks --area far --docs docs/performance.md $(ARGS)

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(INSTALLED)
	$(BIN)/mypy

doctest: $(INSTALLED)
	$(BIN)/python -m pytest --doctest-modules src

$(FOR_DOCS): pyproject.toml constraints.txt | $(INSTALLED)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[docs]"
	touch $@

docs: $(FOR_DOCS)
	$(BIN)/python -m sphinx -j auto -b html -W --keep-going docs docs/_build/html

screenshots: $(FOR_DOCS)
	$(BIN)/python docs/screenshots.py

dist: $(INSTALLED)
	rm -rf dist build/clean
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && clean/bin/python -W error::UserWarning ../examples/demo.py
	build/clean/bin/xarray-tensordict --version

clean:
	rm -rf mutants $(VENV) build dist docs/_build docs/notebooks .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
