.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
WORKERS ?= logical
SPREAD := -n $(WORKERS) --maxprocesses 4 --dist worksteal

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(SERVING): pyproject.toml constraints.txt
	@echo "Creating the environment in $(VENV), once: some 3 GB, most of them PyTorch. This takes minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@
$(STAMP): $(SERVING)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

install: $(STAMP) ## Create the environment, with the tools of developers
serve: $(SERVING) ## Serve the default model on 127.0.0.1:8000
	$(BIN)/kilburn serve $(ARGS)
fmt: $(STAMP) ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
lint: $(STAMP) ## Check style and the import walls
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports
type: $(STAMP) ## Check types
	$(BIN)/mypy
test: $(STAMP) ## All tests that need no GPU
	$(BIN)/kilburn pull
	$(BIN)/python -m pytest -m "not gpu and not slow" $(SPREAD)
test-fast: $(STAMP) ## Tests without the model
	$(BIN)/python -m pytest -m "not gpu and not slow and not model" $(SPREAD)
test-all: $(STAMP) ## Everything, full matrices and soaks
	$(BIN)/kilburn pull
	KILBURN_HYPOTHESIS=nightly $(BIN)/python -m pytest -m "not gpu" --timeout 3600
gpu: $(STAMP) ## Kernels and engine natively on this machine's GPU, then its benchmarks
	TRITON_INTERPRET=0 $(BIN)/python -m pytest tests/kernels tests/engine/test_triton_*.py -k triton
	@mkdir -p build && $(BIN)/python benchmarks/gpu_engine.py --json build/gpu_engine.json && $(BIN)/python -m kernels.bench --json build/gpu_kernels.json --block-costs build/gpu_block_costs.json
golden: $(STAMP) ## Record the golden files anew; review the difference
	$(BIN)/python -m pytest -k golden --rewrite-golden
bench: $(STAMP) ## Run the benchmarks
	@mkdir -p build && for b in benchmarks/[a-z]*.py; do $(BIN)/python $$b --json build/$$(basename $$b .py).json || exit 1; done
check: lint type test ## What CI calls
clean: ## Remove the environment and build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

.PHONY: help install serve fmt lint type test test-fast test-all gpu golden bench check clean
