# Every target makes .venv on demand. PYTHON chooses the interpreter (3.11 or newer),
# ARGS reaches the program: make test ARGS="-k lease", make bench ARGS=--help

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check fix bench model matrix faults screenshots lowest pythons lock audit clean tools

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## Watch messages live and die on a server of its own
	@$(BIN)/mx-rmq demo $(ARGS)

test: tools check ## Run the checks, then every test on three real servers
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

check: $(INSTALLED) ## Lint, format, types, import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(INSTALLED) ## Mend what ruff can mend, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: tools ## Measure us and our peers side by side (25 minutes; ARGS=--quick)
	$(BIN)/python -m bench $(ARGS)

model: tools ## Walk the state machine at length: 3,000 examples
	MX_RMQ_MODEL_EXAMPLES=3000 $(BIN)/pytest -n 2 --timeout=0 tests/model $(ARGS)

matrix: tools ## Test on every server that can be had, from Redis 6.2 on (40 minutes)
	-@sh scripts/servers
	@$(BIN)/python -m tests.lab.matrix $(ARGS)

faults: tools ## Do everything to it that can go wrong, and write docs/reliability.md (75 minutes)
	@$(BIN)/python -m tests.faults $(ARGS)

screenshots: tools ## Take docs/images/dashboard anew, in a real browser
	@sh scripts/setup font
	@$(BIN)/python -m tests.dashboard.screenshots $(ARGS)

pythons: ## Run make demo and make test on Python 3.11, 3.12 and 3.13, in fresh clones (45 minutes)
	@sh scripts/pythons $(ARGS)

lowest: tools ## Test with the lowest versions of every dependency that pyproject.toml allows
	@sh scripts/setup lowest
	.lowest/bin/pytest -n 3 --dist worksteal $(ARGS)

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
