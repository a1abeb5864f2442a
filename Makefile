# Everything here makes its own virtual environment first: nothing else needs to be typed before.
# `make help` lists the targets. PYTHON=/path/to/python chooses the interpreter, VENV=folder where its environment goes.

.PHONY: help demo serve chat test kernels sanitize test-models lint bench aot aot-full clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?=
VENV ?= .venv
SHARE ?= 1/1
CONFIG ?= configs/demo.yaml
PROMPT ?= Explain in two sentences why the sky is blue.

python := $(VENV)/bin/python
xlaserve := $(VENV)/bin/xlaserve
pip := $(python) -m pip --disable-pip-version-check install

candidates := $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3)
# A name on the path may be a shim that fails, and Debian's python3 may come without ensurepip: only running it tells.
usable := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
version := import sys; print(sys.version)

# An environment of another Python than the one asked for is made anew.
ifneq ($(PYTHON),)
ifneq ($(shell "$(PYTHON)" -c "$(version)" 2>/dev/null),$(shell $(python) -c "$(version)" 2>/dev/null))
.PHONY: $(VENV)/.created
endif
endif

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed  ## Print a streamed answer of a real model (downloads 98 MB the first time)
	$(xlaserve) generate --model demo --chat --stream --temperature 0 --prompt "$(PROMPT)"

serve: $(VENV)/.installed  ## Serve the demo model over HTTP, or CONFIG=file.yaml
	$(xlaserve) serve "$(CONFIG)"

chat: $(VENV)/.installed  ## Chat with the demo model in the terminal
	$(xlaserve) chat

test: $(VENV)/.installed-test  ## Run the tests that need no real model; SHARE=1/2: every other one of each file
	$(python) -m pytest -n 2 -m "not models and not aot and not kernels" --share $(SHARE)

kernels: $(VENV)/.installed-test  ## Interpret the Pallas kernels for TPUs and GPUs, case by case, against the reference
	$(python) -m pytest -n 2 -m kernels tests/kernels

sanitize:  ## Check the native kernels with ASan and UBSan, for each set of instructions (needs g++ or clang++)
	tests/kernels/native/run

test-models: $(VENV)/.installed-test $(VENV)/.installed-eval  ## Run the tests on real models (downloads 350 MB the first time)
	$(python) -m pytest -m models

lint: $(VENV)/.installed-dev  ## Check format, style and types
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyright --pythonpath $(python)

bench: $(VENV)/.installed-bench  ## Measure the host's work per step, and the server under load
	$(python) -m benchmarks.host_step
	$(python) -m benchmarks.scheduler_step
	$(python) -m benchmarks.serving

aot: .venv-aot/.installed-aot  ## Compile a sample for TPUs and GPUs that are not here (downloads compilers of 1.3 GB the first time)
	.venv-aot/bin/python -m benchmarks.aot.kernels
	.venv-aot/bin/python -m pytest -m aot tests/aot

aot-full: .venv-aot/.installed-aot  ## Compile all kernels and the whole body for them, into docs/aot.md and docs/roofline.md (about an hour)
	.venv-aot/bin/python -m benchmarks.aot.kernels --full --out docs/aot.md; failed=$$?; \
	.venv-aot/bin/python -m benchmarks.roofline --out docs/roofline.md && exit $$failed

clean:  ## Remove the environment and everything built (downloaded models stay, in ~/.cache/xlaserve)
	rm -rf $(VENV) .venv-aot build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find xlaserve kernels tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@for candidate in $(candidates); do \
	  if "$$candidate" -c "$(usable)" >/dev/null 2>&1; then \
	    echo "Creating $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv --clear $(VENV) && touch $@; \
	    exit; \
	  fi; \
	done; \
	echo "No usable Python. Tried: $(candidates). Needed: Python 3.11, 3.12 or 3.13 that runs and has the module venv" \
	  "(on Debian: apt install python3-venv). To name one: make PYTHON=/path/to/python TARGET" >&2; \
	exit 1

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing xlaserve and what it needs: about a minute"
	$(pip) --quiet --editable .
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(pip) --quiet --editable ".[bench]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(pip) --quiet --editable ".[dev,bench]"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(pip) --quiet --editable ".[test]"
	@touch $@

$(VENV)/.installed-eval: $(VENV)/.installed
	$(pip) --quiet --editable ".[eval]"
	@touch $@

# jax's CUDA plugin and libtpu in an environment of their own: with them, jax looks for devices at every start.
.venv-aot/.installed-aot: pyproject.toml
	$(MAKE) --no-print-directory VENV=.venv-aot .venv-aot/.created
	.venv-aot/bin/python -m pip --disable-pip-version-check install --quiet --editable ".[compilers,test]"
	@touch $@
