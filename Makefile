# Two commands do everything on a fresh machine: `make demo` and `make test`.
# PYTHON is any Python >= 3.11 with venv; the environment lives in .venv and is installed once.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
SEEDS  ?= 2000
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint typecheck unit oldest sanitize bench format clean

help:  ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vtc needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# One pip call resolves torch and torchvision together, so that the pair matches.
$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(PIP) install -q -e '.[bench]'
	@touch $@

# The lint and test tools are an addition to the environment of the demo, not a second one.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) install -q -e '.[bench,dev]'
	@touch $@ $(VENV)/.installed-bench

demo: $(VENV)/.installed-bench  ## compile a real model on this CPU: the timing table and what became of its movement
	$(BIN)/vtc bench llama3 --batch 4 --peers eager,inductor --seconds 10
	$(BIN)/vtc bench llama3 --engine dvm --peers eager --seconds 5
	$(BIN)/vtc bench shufflenet --engine dvm --peers eager,onnxruntime,openvino --seconds 5
	$(BIN)/vtc explain llama3 --batch 4 --html build/llama3.html

test: lint typecheck unit  ## lint, types, layers and the test suite

lint: $(VENV)/.installed-dev  ## ruff and the layers contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

typecheck: $(VENV)/.installed-dev  ## mypy
	$(BIN)/mypy

unit: $(VENV)/.installed-dev  ## pytest
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# The oldest PyTorch that is supported, in an environment of its own: its fake tensors are others.
OLDEST := .venv-oldest

oldest: $(OLDEST)/.installed  ## capture, runtime and a few random graphs on the oldest PyTorch
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist loadfile tests/graph tests/runtime
	$(OLDEST)/bin/python conformance/fuzz --engine both --seeds 100 --jobs $(JOBS)

$(OLDEST)/.installed: pyproject.toml
	$(MAKE) $(OLDEST)/bin/python VENV=$(OLDEST)
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install -q \
		torch==2.11.0 torchvision==0.26.0 -e '.[bench,dev]'
	@touch $@

# The interpreter is built with sanitizers in the place of the usual one, which is put back after.
# What they find is printed at the end: ASan writes it to files, GCC's UBSan beside ASan to
# stderr whatever log_path says, which pytest therefore leaves alone. The sanitizer looks for the C++
# library's functions when the process starts, which Python does without.
FAULTS    := $(CURDIR)/build/sanitized/fault
SANITIZED = LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	PYTHONPATH=tests \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$(FAULTS) \
	UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/python

sanitize: $(VENV)/.installed-dev  ## tests/vm and SEEDS generated programs under ASan and UBSan
	$(PIP) install -q --no-deps -e . -C build-dir=build/sanitized -C cmake.define.VTC_SANITIZE=ON
	status=0; rm -f $(FAULTS).*; \
	{ $(SANITIZED) -m pytest tests/vm --capture=sys --timeout 3600 || status=1; \
	$(SANITIZED) -m vm.conformance --seeds $(SEEDS) --workers $(JOBS) --interpreters native || status=1; \
	$(SANITIZED) -m vm.conformance --seeds $$(($(SEEDS) / 20)) --large --workers $(JOBS) --interpreters native || status=1; \
	} 2> $(FAULTS).stderr; \
	cat $(FAULTS).* 2>/dev/null; \
	$(PIP) install -q --no-deps -e .; \
	exit $$status

bench: $(VENV)/.installed-bench  ## the CPU figures of benchmarks/results
	$(BIN)/python benchmarks/cpu.py

format: $(VENV)/.installed-dev  ## rewrite the sources as ruff formats them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything that is generated
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
