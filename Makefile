# `make demo` and `make test` do all of their own set-up; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TRITON_VENV := .venv-triton
TRITON_BIN := $(TRITON_VENV)/bin
TRITON_INSTALLED := $(TRITON_VENV)/.installed
BUILD_INPUTS := pyproject.toml constraints.txt src/ademamix/__init__.py $(wildcard csrc/*)

.PHONY: demo test test-triton lint fuzz bench clean

demo: $(INSTALLED)
	$(BIN)/ademamix compare $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# The kernels for CUDA, in Triton's interpreter: no GPU, and no C++ core. Triton has an environment of its own, for it
# takes 0.7 GB that nothing else here needs.
test-triton: $(TRITON_INSTALLED)
	TRITON_INTERPRET=1 PYTHONPATH=src $(TRITON_BIN)/python -m pytest -m triton tests/pytorch/test_triton.py $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The C++ core under AddressSanitizer and UBSan, fed by libFuzzer; needs clang and its runtime (Debian: clang,
# libclang-rt-14-dev). Ten minutes on one core; what it finds is written to build/fuzz.
fuzz:
	cmake -S csrc -B build/fuzz -DADEMAMIX_FUZZ=ON -DADEMAMIX_SANITIZE=fuzzer,address,undefined \
	  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-O2
	cmake --build build/fuzz --parallel 2
	cd build/fuzz && ./fuzz -runs=1200000 -max_len=300 $(ARGS)

bench: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/ademamix bench $(ARGS)

$(INSTALLED): $(BUILD_INPUTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

$(TRITON_INSTALLED): constraints.txt
	$(PYTHON) -m venv $(TRITON_VENV)
	$(TRITON_BIN)/pip install -q --upgrade pip
	$(TRITON_BIN)/pip install -q $$(grep '^torch==' constraints.txt)
	$(TRITON_BIN)/pip install -q -c constraints.txt triton numpy hypothesis pytest
	touch $@

clean:
	rm -rf $(VENV) $(TRITON_VENV) build dist out
