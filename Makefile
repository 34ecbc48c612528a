# Needs make and Python 3.11 or newer; everything else goes into $(VENV).
#
#   make demo                            try the bridge before its embedded demo server
#   make test PYTEST_ARGS='-k sse -x'    what pytest is told
#   make test JOBS=0                     all in one process, as a debugger wants it
#   make soak SOAK_SECONDS=600           the soak test for ten minutes with each process model
#   make PYTHON=python3.13 test          another Python than python3

PYTHON = python3
VENV = .venv
PORT = 8080
PYTEST_ARGS =
JOBS = 2
SOAK_SECONDS = 60

bin := $(abspath $(VENV))/bin
pip := $(bin)/python -m pip install --quiet

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test soak lint types conformance check clean

help:
	@echo 'make demo         run the bridge before a demo server on port $(PORT)'
	@echo 'make test         run all tests (PYTEST_ARGS=... for pytest)'
	@echo 'make soak         the soak test for longer than make test does it'
	@echo 'make lint types   ruff and mypy'
	@echo 'make conformance  the official MCP conformance suite (needs npm)'
	@echo 'make check        all of these'
	@echo 'make clean        remove what was installed and cached here'

demo: $(VENV)/.installed
	@PATH="$(bin):$$PATH" exec mcp-bridge stdio-to-http --port $(PORT) -- mcp-bridge demo-server

test: $(VENV)/.tools
	$(bin)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(VENV)/.tools
	SOAK_SECONDS=$(SOAK_SECONDS) $(bin)/python -m pytest tests/soak $(PYTEST_ARGS)

lint: $(VENV)/.tools
	$(bin)/ruff check
	$(bin)/ruff format --check

types: $(VENV)/.tools
	$(bin)/mypy

conformance: $(VENV)/.tools
	$(bin)/python tests/conformance/cells.py

check: lint types test conformance

clean:
	rm -rf $(VENV) .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each is newer than what it was made from, so that a second run installs nothing.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	    "Python 3.11 or newer is needed, not %d.%d: say make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv --clear $(VENV) || \
	    { echo 'No virtual environment could be made; on Debian and Ubuntu install python3-venv.' >&2; exit 1; }
	$(pip) --upgrade 'pip>=25.1' # the first that reads [dependency-groups]
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(pip) --editable .
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(pip) --group test --group lint
	@touch $@
