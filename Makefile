# Needs python3 (3.11 or newer) with venv. Everything else goes into .venv, with pinned hashes.

PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/stamps
PIN := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate $(UPGRADE)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where the system keeps certificates uv uses them: a company's proxy brings one of its own.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= true
endif

# uv installs in two seconds what takes pip half a minute; pip does it where uv cannot.
define install
{ $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || \
	{ echo 'uv could not; pip tries' >&2; $(BIN)/python -m pip install --quiet $(1); }; }
endef

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-llm serve test check bench eval soak fuzz lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

# Into a database of one's own (HAULAGE_DATABASE_URL) the demonstration brings its tables along.
demo demo-llm: export HAULAGE_AUTO_MIGRATE ?= true

demo: $(STAMPS)/app ## Find the themes in 2,000 patients' comments
	@$(BIN)/haulage analyse examples/nhs-fft/nhs-fft.csv --column text --id-column id \
		--group-by service --limit 2000

demo-llm: $(STAMPS)/app $(STAMPS)/llama ## The same for 80 comments, named by a small LLM that runs here
	@$(BIN)/python examples/local_llm.py -- $(BIN)/haulage analyse examples/nhs-fft/nhs-fft.csv \
		--column text --id-column id --limit 80 --max-themes 2 \
		--llm-base-url {url} --llm-model {model}

serve: $(STAMPS)/app ## Run API and scheduler on http://127.0.0.1:8000
	@$(BIN)/haulage serve

test: $(STAMPS)/dev ## Run the tests
	$(BIN)/python -m pytest

check: $(STAMPS)/dev ## Run every check but the tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python requirements/check.py
	$(BIN)/python migrations/lint.py
	$(BIN)/python docs/render.py --check

bench: $(STAMPS)/dev ## Run every benchmark
	@for script in $(basename $(notdir $(wildcard benchmarks/*.py))); do \
		echo "== $$script"; $(BIN)/python -m benchmarks.$$script || exit; \
	done

eval: $(STAMPS)/dev ## Score the themes against people's labels
	@$(BIN)/python -m benchmarks.themes.all

soak: $(STAMPS)/dev ## Kill and freeze everything for SOAK_SECONDS=600, by SOAK_SEED, and count what is lost
	@PYTHONPATH=.:tests $(BIN)/python -m soak

fuzz: $(STAMPS)/dev ## Send FUZZ_EXAMPLES=200 generated requests to each route, by FUZZ_SEED
	@PYTHONPATH=.:tests $(BIN)/python -m fuzz

lock: $(STAMPS)/dev ## Pin the requirements again; UPGRADE=--upgrade takes newer releases
	$(PIN) requirements/uv.in -o requirements/uv.txt
	$(PIN) pyproject.toml requirements/build.in -c requirements/uv.txt \
		--extra embedded --extra thematic --extra llm --extra mongo --extra dev \
		-o requirements/dev.txt
	$(PIN) pyproject.toml requirements/build.in -c requirements/dev.txt \
		--extra embedded --extra thematic --extra mongo -o requirements/app.txt
	$(PIN) pyproject.toml requirements/build.in -c requirements/dev.txt \
		--extra thematic --extra mongo -o requirements/server.txt
	$(PIN) --no-deps requirements/llama.in -o requirements/llama.txt

clean: ## Remove everything that was built or installed here
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find app migrations tests benchmarks docs requirements -name __pycache__ -prune -exec rm -rf {} +

# pip is the last thing that venv makes, so an interrupted run does not count as done.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo 'venv is missing; install it: sudo apt-get install python3-venv' >&2; exit 1; }
	@echo 'Making .venv'
	@$(PYTHON) -m venv .venv

$(STAMPS)/uv: requirements/uv.txt | $(BIN)/pip
	@mkdir -p $(STAMPS)
	@$(BIN)/python -m pip install --quiet --require-hashes -r $< || echo 'going on without uv' >&2
	@touch $@

$(STAMPS)/llama: requirements/llama.txt $(STAMPS)/uv
	@echo 'Installing $<'
	@{ $(call install,--no-deps --only-binary :all: --require-hashes -r $<); } && touch $@ || \
		echo 'going on without a local LLM' >&2

$(STAMPS)/dev: | $(STAMPS)/llama

$(STAMPS)/app $(STAMPS)/dev: $(STAMPS)/%: requirements/%.txt pyproject.toml $(STAMPS)/uv
	@echo 'Installing $<'
	@$(call install,--require-hashes -r $<)
	@$(call install,--no-build-isolation --no-deps -e .)
	@touch $@
