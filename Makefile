# Every target does its own set-up: Python 3.11 or newer, make and pip are all that must be there.

# Set on the command line, never read from the environment.
PYTHON =
DATA =
QUICK =
ONLY =

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# Idle OpenMP threads sleep instead of spinning: several processes then share few cores without a fight.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-all bench bench-quick lint format clean FORCE

help: ## Show this help
	@echo "Titans: language models that learn to memorize at test time."
	@echo
	@echo "Usage: make TARGET [NAME=VALUE ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Examples:"
	@echo "  make demo                      train, compare and report; at most 10 minutes on 2 CPU cores"
	@echo "  make demo QUICK=1              the same steps in about a minute"
	@echo "  make demo DATA=path/to/text    the same on your own text: a file, a folder or a glob"
	@echo "  make bench ONLY=\"layer limit\" some contests: layer, limit, growth, training, generation, import"
	@echo "  make test PYTHON=python3.12    choose the Python that $(VENV) is made with"
	@echo
	@echo "The first run creates $(VENV) and installs the versions in constraints.txt (a few minutes)."
	@echo "After that, the command line is $(VENV)/bin/titans --help."

demo: $(STAMP) ## Train a small Titans model on real text and write demo-report/ (QUICK=1, DATA=path)
	$(VENV)/bin/titans demo $(if $(filter-out 0,$(QUICK)),--quick) $(if $(DATA),--data "$(DATA)") --out demo-report

docs: $(STAMP) ## Build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build

test: $(STAMP) ## Run the tests, every module's, in about 5 minutes on 2 cores
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -n 2

test-all: $(STAMP) ## Run all tests, the slow ones, too; about a quarter of an hour
	OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -n 2 -m ""

bench: $(STAMP) ## Measure speed and memory beside other implementations; about half an hour, writes bench-report/
	$(VENV_PYTHON) benchmarks --out bench-report $(foreach name,$(ONLY),--only $(name))

bench-quick: $(STAMP) ## Under 2 minutes: only against the reference and the machine; fails when slower than recorded
	$(VENV_PYTHON) benchmarks --quick

lint: $(STAMP) ## Check style, format and types; changes nothing
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: $(STAMP) ## Format the code and fix what ruff can fix
	$(VENV_PYTHON) -m ruff check --fix-only .
	$(VENV_PYTHON) -m ruff format .

clean: ## Remove .venv, caches, build outputs and demo-report/
	rm -rf $(VENV) build dist site demo-report bench-report benchmarks/.peers .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Time stamps do not show an unfinished set-up, a folder that has moved, an interpreter that is gone, or
# another PYTHON asked for. The stamp's content and a look at the interpreter do; then .venv is made anew.
venv_usable := $(shell [ "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" ] && $(VENV_PYTHON) -c "" 2>/dev/null \
	&& { [ -z "$(PYTHON)" ] || [ "$$($(VENV_PYTHON) -V)" = "$$($(PYTHON) -V 2>&1)" ]; } && echo yes)

# A candidate must run (a version manager's shim may not), be new enough, and be able to make a venv.
define create_venv
for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	if $$candidate -c "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then \
		echo "Creating $(VENV) with $$($$candidate -V) ($$candidate)"; \
		rm -rf $(VENV) && exec $$candidate -m venv $(VENV); \
	fi; \
done; \
echo "error: no Python 3.11 or newer with the venv module was found (tried:" \
	"$(or $(PYTHON),python3 python3.13 python3.12 python3.11)); install one" \
	"or name one with 'make PYTHON=path/to/python'." >&2; \
exit 2
endef

$(STAMP): pyproject.toml constraints.txt $(if $(venv_usable),,FORCE)
	@$(if $(venv_usable),echo "Updating $(VENV)",$(create_venv))
	$(VENV_PYTHON) -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@printf "%s" "$(CURDIR)" > $@
