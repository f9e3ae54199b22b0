# `make demo` and `make test` do all of their own set-up; a second call is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TRITON_VENV := .venv-triton
TRITON_BIN := $(TRITON_VENV)/bin
TRITON_INSTALLED := $(TRITON_VENV)/.installed
DEEPSPEED_VENV := .venv-deepspeed
DEEPSPEED_BIN := $(DEEPSPEED_VENV)/bin
DEEPSPEED_INSTALLED := $(DEEPSPEED_VENV)/.installed
WHEELS_VENV := .venv-wheels
WHEELS_BIN := $(WHEELS_VENV)/bin
WHEELS_INSTALLED := $(WHEELS_VENV)/.installed
PROGRAMS := chromium postgresql g++-aarch64-linux-gnu qemu-user
BUILD_INPUTS := pyproject.toml constraints.txt src/ademamix/__init__.py $(wildcard csrc/*)

.PHONY: demo test test-cluster test-distributed test-programs test-triton test-deepspeed lint check-schemas docs \
  linkcheck fuzz bench bench-deepspeed speed wheels clean

demo: $(INSTALLED)
	$(BIN)/ademamix compare $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# All layouts of sharded parameters, in groups of 1 and 4 processes; `make test` has those of 2. And runs of the lab on
# several processes, some of which are killed.
test-distributed: $(INSTALLED)
	ADEMAMIX_TEST_DISTRIBUTED=1 $(BIN)/python -m pytest -m distributed tests $(ARGS)

# Runs on the nodes of a Ray cluster, two on this machine, which are killed.
test-cluster: $(INSTALLED)
	ADEMAMIX_TEST_CLUSTER=1 $(BIN)/python -m pytest -m cluster tests/lab $(ARGS)

# What needs programs beside Python, from Debian: the report in a browser, a sweep whose trials are in a database, the
# core on ARM in an emulator.
test-programs: $(INSTALLED)
	dpkg -s $(PROGRAMS) >/dev/null 2>&1 || (apt-get update -qq && apt-get install -y -qq $(PROGRAMS))
	ADEMAMIX_TEST_PROGRAMS=1 $(BIN)/python -m pytest -m programs tests $(ARGS)

# The kernels for CUDA, in Triton's interpreter and compiled: no GPU, and no C++ core. Triton has an environment of its
# own, for it takes 0.7 GB that nothing else here needs, apart from torchtitan.
TRITON_TESTS := $(addprefix tests/,pytorch/test_triton.py pytorch/test_triton_compiled.py \
  pytorch/integrations/test_torchtitan.py test_examples.py test_gpu_benchmark.py)
test-triton: $(TRITON_INSTALLED)
	TRITON_INTERPRET=1 PYTHONPATH=src $(TRITON_BIN)/python -m pytest -m triton $(TRITON_TESTS) $(ARGS)

# DeepSpeed and Megatron-Core, in an environment without the many packages that they name and do not need here. DeepSpeed
# compiles a part of itself when it is first used, and keeps it in build/.
DEEPSPEED_TESTS := $(addprefix tests/,pytorch/distributed/test_zero_stages.py \
  pytorch/distributed/test_megatron_slices.py test_examples.py)
DEEPSPEED_SETTINGS := DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$(CURDIR)/build/torch_extensions
test-deepspeed: $(DEEPSPEED_INSTALLED)
	ADEMAMIX_TEST_DEEPSPEED=1 $(DEEPSPEED_SETTINGS) \
	  $(DEEPSPEED_BIN)/python -m pytest -m deepspeed $(DEEPSPEED_TESTS) $(ARGS)

lint: $(INSTALLED) check-schemas
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in build/docs; any warning is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# The addresses that the pages refer to, each asked for: needs a network.
linkcheck: $(INSTALLED)
	$(BIN)/python -m sphinx -q -b linkcheck docs build/linkcheck

# Files that only the repository's host reads. The schemas come with the tool: no network is needed.
check-schemas: $(INSTALLED)
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff

# The C++ core under AddressSanitizer and UBSan, fed by libFuzzer; needs clang and its runtime (Debian: clang,
# libclang-rt-14-dev). Ten minutes on one core; what it finds is written to build/fuzz.
fuzz:
	cmake -S tests/csrc -B build/fuzz -DADEMAMIX_FUZZ=ON -DADEMAMIX_SANITIZE=fuzzer,address,undefined \
	  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-O2
	cmake --build build/fuzz --parallel 2
	cd build/fuzz && ./fuzz -runs=1200000 -max_len=300 $(ARGS)

bench: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/ademamix bench $(ARGS)

# DeepSpeed's CPUAdam and ours, in turns in one process of the environment that has DeepSpeed.
bench-deepspeed: $(DEEPSPEED_INSTALLED)
	$(DEEPSPEED_SETTINGS) $(DEEPSPEED_BIN)/ademamix bench --peer deepspeed --only gpt2 $(ARGS)

# The tables of docs/speed.md and docs/optax.md, measured on this machine, which is best left alone meanwhile: half an
# hour. `make speed MACHINE=zen5 ARGS="--processes 5"` measures in more processes.
MACHINE ?= this
SPEED := benchmarks/results/speed/$(MACHINE)
speed: $(INSTALLED) $(DEEPSPEED_INSTALLED)
	mkdir -p $(dir $(SPEED))
	$(BIN)/ademamix bench --no-peers --processes 3 $(ARGS) --json $(SPEED).json
	for set in avx2 portable; do ADEMAMIX_INSTRUCTION_SET=$$set \
	  $(BIN)/ademamix bench --no-peers --only cache --processes 3 $(ARGS) --json $(SPEED)-$$set.json || exit 1; done
	$(DEEPSPEED_SETTINGS) $(DEEPSPEED_BIN)/ademamix bench --peer deepspeed --processes 3 $(ARGS) \
	  --json $(SPEED)-deepspeed.json
	$(BIN)/python benchmarks/speed_tables.py

# What a release uploads: the sdist, and from it the wheels for Python 3.10 to 3.14; needs Docker. A core that does not
# compile ends this: cibuildwheel refuses the wheel without one, which an install would accept.
wheels: $(WHEELS_INSTALLED)
	rm -rf dist
	$(WHEELS_BIN)/python -m build --sdist
	$(WHEELS_BIN)/cibuildwheel --platform linux --output-dir dist dist/*.tar.gz

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
	$(TRITON_BIN)/pip install -q -c constraints.txt triton torchtitan numpy hypothesis pytest
	touch $@

$(DEEPSPEED_INSTALLED): $(BUILD_INPUTS)
	$(PYTHON) -m venv $(DEEPSPEED_VENV)
	$(DEEPSPEED_BIN)/pip install -q --upgrade pip
	$(DEEPSPEED_BIN)/pip install -q $$(grep '^torch==' constraints.txt)
	$(DEEPSPEED_BIN)/pip install -q -c constraints.txt einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic \
	  setuptools tqdm wheel numpy hypothesis pytest
	DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(DEEPSPEED_BIN)/pip install -q -c constraints.txt --no-deps --no-build-isolation \
	  deepspeed megatron-core
	$(DEEPSPEED_BIN)/pip install -q -c constraints.txt --no-deps -e .
	touch $@

$(WHEELS_INSTALLED): constraints.txt
	$(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_BIN)/pip install -q --upgrade pip
	$(WHEELS_BIN)/pip install -q -c constraints.txt build cibuildwheel
	touch $@

clean:
	rm -rf $(VENV) $(TRITON_VENV) $(DEEPSPEED_VENV) $(WHEELS_VENV) build dist out
