# `make demo` and `make test` do all of their own set-up; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BUILD_INPUTS := pyproject.toml constraints.txt $(wildcard csrc/*)

.PHONY: demo test lint bench clean

demo: $(INSTALLED)
	$(BIN)/ademamix reproduce toy-rosenbrock

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/ademamix bench $(ARGS)

$(INSTALLED): $(BUILD_INPUTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist out
