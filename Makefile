# The template's own targets. Each makes the virtual environment that it needs (hashes checked).
#   make PYTHON=python3.12 ...      another Python (3.11 or newer)
#   make test ARGS="-m 'not slow'"  arguments for pytest

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TEMPLATE = {{cookiecutter.project_slug}}

# The services that demo and test generate share one environment, so that it is installed once.
SERVICE_VENV ?= $(CURDIR)/.venv-service

.DEFAULT_GOAL := help
.PHONY: help demo test test-host matrix lint format docs lock venv

help: ## Say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: venv ## Generate a service in a temporary folder and run its demo
	@folder=$$(mktemp -d) || exit 1; \
	trap 'rm -rf "$$folder"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	"$(VENV)/bin/cookiecutter" --no-input --default-config . --output-dir "$$folder" project_slug=demo && \
	$(MAKE) --no-print-directory -C "$$folder/demo" demo VENV="$(SERVICE_VENV)" ARGS="$(ARGS)"

test: venv lint ## Every combination of answers, bad answers, and the generated services' own tests
	@SERVICE_VENV="$(SERVICE_VENV)" "$(VENV)/bin/python" -m pytest $(ARGS)

matrix: venv ## Measure what becomes of edits by each way to update, and write it into docs/updating.md
	@"$(VENV)/bin/python" tests/update_matrix.py

test-host: venv ## Boot hosts with systemd, deploy to them, and print what was seen (root; ARGS="--short --json FILE")
	@"$(VENV)/bin/python" -B tests/machines/run.py $(ARGS)

lint: venv ## Style and format of the template's own files, nothing changed
	@"$(VENV)/bin/ruff" check .
	@"$(VENV)/bin/ruff" format --check .
	@"$(VENV)/bin/python" docs/refresh.py --check

docs: venv ## Fill the blocks of the documentation that show files, from those files
	@"$(VENV)/bin/python" docs/refresh.py

format: venv ## Put style and format right
	@"$(VENV)/bin/ruff" check --fix .
	@"$(VENV)/bin/ruff" format .

lock: ## Write requirements-dev.txt again from requirements-dev.in, and the service's too (needs uv)
	@command -v uv >/dev/null || { echo "uv is not on the PATH, and it alone writes requirements for several Pythons: pip install uv." >&2; exit 1; }
	uv pip compile --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --quiet $(ARGS) requirements-dev.in --output-file requirements-dev.txt
	$(MAKE) --no-print-directory -C "$(TEMPLATE)" lock ARGS="$(ARGS)"
	cd "$(TEMPLATE)/deploy/.{{cookiecutter.__ansible}}" && uv pip compile --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lockdeploy" --quiet $(ARGS) requirements.in --output-file requirements.txt

venv:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not on the PATH: install Python 3.11 or newer, or say which one to use: make PYTHON=/path/to/python3." >&2; exit 1; }
	@"$(PYTHON)" "$(TEMPLATE)/dev/make_venv.py" "$(VENV)" requirements-dev.txt
