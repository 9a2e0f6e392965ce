# The commands of the project. Each makes the environment it needs; again, it takes no time.
PYTHON ?= python3
ARGS ?=
WORKLOADS ?= ../shared/data/workloads/peers.json
TEXT ?= ../shared/data/text/wikitext2_test.txt

BIN := .venv/bin
SOURCES := pyproject.toml $(shell find csrc -type f 2>/dev/null)
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input

.PHONY: serve test lint fix bench perplexity docs oracle gpu-check measure measure-groups sanitize emulate determinism \
	golden-models clean

serve: .venv/.installed  ## serve a model (ARGS="--port 8001 ...")
	@$(BIN)/octavo serve $(ARGS)

test: .venv/.developing  ## fetch the default model and run all tests (ARGS="tests/core -k ...")
	@$(BIN)/octavo pull || { [ -z "$$CI" ] && echo "tests that need the default model are skipped"; }
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/.developing  ## style, types, direction of imports, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_tree.py

fix: .venv/.developing  ## repair what style can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed  ## measure ops, the machine, and five workloads over HTTP (ARGS="--baseline ...")
	@$(BIN)/python scripts/bench.py --workloads $(WORKLOADS) $(ARGS)

perplexity: .venv/.installed  ## what quantised paths cost on a text (TEXT=FILE ARGS="gemma3-270m --tokens 2000 ...")
	@$(BIN)/octavo bench perplexity --text $(TEXT) $(ARGS)

docs: .venv/.developing  ## write the generated references in docs/
	$(BIN)/python scripts/generate_docs.py

oracle: .venv/.installed .venv-oracle/.installed  ## compare with torch and transformers
	.venv-oracle/bin/python tests/oracle/make_golden.py --check
	.venv-oracle/bin/python tests/oracle/make_greedy.py --check "smollm2=$$($(BIN)/octavo pull)"
	.venv-oracle/bin/python tests/oracle/make_families.py --check
	.venv-oracle/bin/python tests/oracle/make_chat_golden.py --check
	TRITON_INTERPRET=1 .venv-oracle/bin/python -m pytest tests/gpu -rs -p no:cacheprovider

gpu-check:  ## run the GPU backend's tests on this machine's GPU (PYTHON: one that has torch)
	@$(PYTHON) scripts/gpu_check.py $(ARGS)

measure: .venv/.developing  ## first token, idle CPU, size of the environment
	@$(BIN)/python scripts/measure.py

measure-groups: .venv/.developing  ## what the groups of a 4-bit checkpoint cost in speed
	@$(BIN)/python scripts/measure_groups.py

sanitize: .venv/.developing  ## the kernels' tests under address and undefined-behaviour sanitizers
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input nanobind cmake
	$(BIN)/python scripts/sanitize.py $(ARGS)

determinism: .venv/.developing  ## the same tokens, at length: the default model in every way
	@$(BIN)/octavo pull
	$(BIN)/python -m pytest -m determinism tests/promises $(ARGS)

golden-models: .venv/.developing  ## Gemma 3 270M and Qwen2.5-Coder 0.5B as transformers has them (fetches 760 MB)
	@$(BIN)/octavo pull gemma3-270m && $(BIN)/octavo pull qwen2.5-coder-0.5b
	$(BIN)/python -m pytest -n 0 -m models tests/model $(ARGS)

emulate: .venv/.developing  ## the kernels' tests in AVX512, in software (needs libsimde-dev)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input nanobind cmake
	$(BIN)/python scripts/emulate.py $(ARGS)

clean:
	rm -rf .venv .venv-oracle build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# With everything for tests installed, what serving needs is there too.
.venv/.developing: $(SOURCES)
	@scripts/venv.sh $(PYTHON) .venv
	@echo "Installing octavo with its tools into .venv (a minute or two, once) ..."
	@$(INSTALL) -e '.[test,lint]'
	@touch .venv/.installed $@

.venv/.installed: $(SOURCES)
	@scripts/venv.sh $(PYTHON) .venv
	@echo "Installing octavo into .venv (about a minute, once) ..."
	@$(INSTALL) -e .
	@touch $@

.venv-oracle/.installed: tests/oracle/requirements.txt
	@scripts/venv.sh $(PYTHON) .venv-oracle
	@echo "Installing torch and transformers into .venv-oracle (some minutes, once) ..."
	@.venv-oracle/bin/python -m pip install -qq --disable-pip-version-check --no-input \
		-r tests/oracle/requirements.txt
	@touch $@
