# Three commands for newcomers: `make demo`, `make notebook` and `make test`. Each makes .venv and installs what it needs.
#
# Everything runs on the built wheel, as users get it; `make dev` makes an editable install instead, until the next
# `make test` or `make demo`. Stamps in .venv keep a second run quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CODE := sdk device_agent tests notebooks
# Folders too: their time changes when a file goes away.
SOURCES := $(shell find sdk device_agent -name __pycache__ -prune -o -print) pyproject.toml README.md LICENSE

export POTLUCK_BUILT_WHEEL := 1
export OMP_NUM_THREADS := 1
# Without bytecode kept, every process that runs tests compiles them all again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo notebook test short-tests test-long test-arm lint docs dev clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	env -u OMP_NUM_THREADS $(BIN)/potluck demo $(ARGS)

# The tutorial in JupyterLab; it opens a browser.
notebook: $(VENV)/installed
	$(PIP) install "jupyterlab>=4.2" "matplotlib>=3.8"
	env -u OMP_NUM_THREADS $(BIN)/jupyter lab notebooks $(ARGS)

# Three files at a time: much of the time goes into waiting for agents to start. Files stay whole, as they share homes.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder

# Beside each other: the linters leave one core idle.
test: $(VENV)/installed
	@$(MAKE) --no-print-directory --jobs 2 lint short-tests

# What failed is tried once more by itself: three processes at a time starve each other on a busy machine.
short-tests: $(VENV)/installed
	$(BIN)/python -m pytest -m "not long" $(AT_ONCE) $(ARGS) || \
		$(BIN)/python -m pytest -m "not long" --last-failed --last-failed-no-failures none $(ARGS)

test-long: lint
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --timeout 3600 -o faulthandler_timeout=4000 $(ARGS)

# On an ARM processor that QEMU plays; by hand, for it fetches some 500 MB into build/arm64, and
# with ARGS=--torch 4 GB more.
test-arm: $(VENV)/installed
	$(BIN)/python -m tests.arm64 $(ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

# The guide and the API reference, in build/docs; the tutorial's code is run for it.
docs: $(VENV)/installed
	$(BIN)/python sdk/docs/build.py $(ARGS)

dev: $(VENV)/torch
	@echo "installing potluck, to be edited, and what it needs ..."
	$(PIP) install --editable ".[dev]"
	rm -f $(VENV)/installed $(VENV)/dependencies

clean:
	rm -rf $(VENV) build dist potluck-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "potluck needs Python 3.10 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	@echo "making $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	touch $@

# The pinned torch comes first, so that everything after it is resolved around this one.
$(VENV)/torch: $(VENV)/made
	@echo "installing PyTorch: some 2 GB, which may take minutes ..."
	$(PIP) install torch==2.13.0
	touch $@

$(VENV)/wheel: $(SOURCES) | $(VENV)/torch
	@echo "building potluck ..."
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	touch $@

$(VENV)/dependencies: pyproject.toml | $(VENV)/wheel
	@echo "installing what potluck needs: some 500 MB, which may take minutes ..."
	$(PIP) install "$$(echo dist/potluck-*.whl)[dev]"
	touch $@

$(VENV)/installed: $(VENV)/wheel $(VENV)/dependencies
	@echo "installing potluck ..."
	$(PIP) install --no-deps --force-reinstall dist/potluck-*.whl
	touch $@
