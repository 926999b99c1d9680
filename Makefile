# Every target makes .venv on demand. PYTHON chooses the interpreter (3.11 or newer),
# ARGS reaches the program: make test ARGS="-k lease", make bench ARGS=--help

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed

# What `make quick` tests, on one server: no processes, no browser, no fault lab.
QUICK := tests/core tests/store tests/model/test_mutants.py tests/test_queue.py \
	tests/test_public_names.py tests/test_safe_log.py

.DEFAULT_GOAL := help
.PHONY: help demo test quick check fix bench model matrix faults screenshots lowest pythons lock audit clean tools

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## Watch the queue at work on its own server
	@$(BIN)/mx-rmq demo $(ARGS)

test: tools check ## Run the checks, then every test on three real servers
	$(BIN)/pytest -n 4 --dist worksteal $(ARGS)

quick: tools check ## Run the checks and the fast tests on one server, while you work
	MX_RMQ_SERVERS=valkey-9.1 $(BIN)/pytest -q -n 2 --dist worksteal $(QUICK) $(ARGS)

check: $(INSTALLED) ## Lint, format, types, import layers, prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose.py

fix: $(INSTALLED) ## Fix what ruff can fix, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: tools ## Measure us and our peers side by side (30 minutes; ARGS=--quick)
	$(BIN)/pytest -m measures
	$(BIN)/python -m bench $(ARGS)

model: tools ## Walk the state machine at length: 3,000 examples, and search for every mutant
	MX_RMQ_MODEL_EXAMPLES=3000 $(BIN)/pytest -n 2 --timeout=0 tests/model $(ARGS)

matrix: tools ## Test on every available server, from Redis 6.2 on (40 minutes)
	-@sh scripts/servers
	@$(BIN)/python -m tests.lab.matrix $(ARGS)

faults: tools ## Provoke every kind of fault, and write docs/reliability.md (75 minutes)
	@$(BIN)/python -m tests.faults $(ARGS)

screenshots: tools ## Take the pictures in docs/images/dashboard again, in a real browser
	@sh scripts/setup font
	@$(BIN)/python -m tests.dashboard.screenshots $(ARGS)

pythons: ## Run make demo and make test on Python 3.11, 3.12 and 3.13, in fresh clones (45 minutes)
	@sh scripts/pythons $(ARGS)

lowest: tools ## Test with the lowest versions of every dependency that pyproject.toml allows
	@sh scripts/setup lowest
	.lowest/bin/pytest -n 4 --dist worksteal $(ARGS)

lock: ## Pin the newest requirements of development and of the image, with hashes
	@PYTHON='$(PYTHON)' sh scripts/setup lock

audit: ## Look for known vulnerabilities in the pinned requirements (asks PyPI)
	@PYTHON='$(PYTHON)' sh scripts/setup audit

clean: ## Remove everything that make made
	rm -rf .venv .lowest .pythons .bench .servers .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements-dev.txt pyproject.toml scripts/setup
	@PYTHON='$(PYTHON)' sh scripts/setup venv

# A copied .venv would still import the tree it came from.
ifneq ($(CURDIR),$(shell cat $(INSTALLED) 2>/dev/null))
.PHONY: $(INSTALLED)
endif

tools: $(INSTALLED)
	@sh scripts/setup tools
