# One entry for everything. Needs make and Python 3.11 or newer; PYTHON=/path/to/python chooses one.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
# Processes of tests would compile again what they import: three that collect tests, and a hundred that these start.
unexport PYTHONDONTWRITEBYTECODE

CHECKED := src tests $(wildcard examples benchmarks)

.PHONY: help setup servers postgresql redis nats rabbitmq demo test tests types format nightly cluster stress bench bench-peers lock audit dist clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: $(STAMP) ## Create .venv and install the locked packages and Tupletree

$(STAMP): requirements.lock pyproject.toml
	@found=; \
	for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "make setup: no Python 3.11 or newer among: $(CANDIDATES)" >&2; \
	    echo "  next: install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Creating $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear $(VENV) || { \
	        echo "make setup: this Python cannot create an environment" >&2; \
	        echo "  next: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }; \
	fi
	@echo "Installing the locked packages into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# $(call server,test,package): install a Debian package unless the test succeeds.
define server
	@if $(1); then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then as=; elif command -v sudo >/dev/null; then as=sudo; else \
	    echo "make $@: installing needs root or sudo" >&2; exit 1; \
	fi; \
	if ! command -v apt-get >/dev/null; then \
	    echo "make $@: there is no apt-get; install the server of $@ so that its programs are on PATH" >&2; exit 1; \
	fi; \
	echo "Installing the server of $@"; \
	$$as apt-get update -qq && \
	$$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $(2) >/dev/null && \
	$(1)
endef

servers: postgresql redis nats rabbitmq ## Install the servers that tests need and do not find (Debian, Ubuntu; root or sudo)

postgresql: setup
	$(call server,$(BIN)/python -m tests.databases,postgresql)

redis:
	$(call server,command -v redis-server,redis-server)

nats:
	$(call server,command -v nats-server,nats-server)

rabbitmq:
	$(call server,command -v rabbitmq-server,rabbitmq-server)

demo: setup ## Count words on Spark while some lines fail, and account for every line
	@$(BIN)/tupletree demo

test: setup ## Format, lint, types, layers, tests; all of it on two cores
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	@$(MAKE) --no-print-directory --jobs=2 tests types

tests: setup
	@$(BIN)/python -m tests.java_archive
	$(BIN)/pytest -n 3 --dist loadgroup

# Its lines come together, for tests run beside it.
types: setup
	@said=$$($(BIN)/mypy && $(BIN)/lint-imports) || { printf '%s\n' "$$said"; exit 1; }; printf '%s\n' "$$said" | tail -n 3

format: setup ## Format and mend what can be mended by itself
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix $(CHECKED)

nightly: setup ## The long tests: kill loops, soak, large state
	$(BIN)/pytest -m nightly --timeout 3600
	$(BIN)/pytest -m cluster --timeout 900 tests/cluster

cluster: setup ## Conformance on a standalone Spark cluster of two workers, and what losing one of them costs
	$(BIN)/pytest -m cluster --timeout 900 tests/cluster

stress: setup ## Thread storms and long loops: nothing is lost, and everything goes back to zero
	$(BIN)/pytest -m stress --timeout 1800

bench: setup ## The benchmarks, ratio against the peer in one run
	$(BIN)/python -m benchmarks

bench-peers: setup ## What the local runtime is measured against, in an environment of its own
	@$(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-config \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: ## Resolve the dependencies anew for every platform and Python (needs a set-up .venv)
	$(COMPILE) --group dev --extra java --extra sql --extra redis --extra nats --extra rabbitmq --extra kafka --extra sqs --extra delta --extra metrics --extra routes --extra embed \
	    --extra otel --extra openlineage --extra cloudevents pyproject.toml --output-file requirements.lock $(LOCK_OPTIONS)
	$(COMPILE) --group release --output-file requirements-release.lock $(LOCK_OPTIONS)

RELEASE := .venv-release

$(RELEASE)/.installed: requirements-release.lock | $(STAMP)
	@$(BIN)/python -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	@touch $@

audit: $(RELEASE)/.installed ## Look for known faults of the locked packages; fails, too, where the advisories cannot be had
	$(RELEASE)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.lock
	$(RELEASE)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements-release.lock

dist: $(RELEASE)/.installed ## Build the wheel, the sdist and the list of what they are made of (SBOM, CycloneDX) in dist/
	rm -rf dist
	$(BIN)/uv build --quiet --offline --no-build-isolation --python $(BIN)/python
	$(RELEASE)/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type library \
	    --output-reproducible --output-format JSON --output-file dist/sbom.cdx.json

clean: ## Remove what the tools and runs left, but not .venv
	rm -rf $(RELEASE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .tupletree build dist
