# The two commands of the README are `make demo` and `make test`; both build on `make install`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One release for everyone who uses this file; pyproject.toml allows a range.
TORCH ?= torch==2.13.0

.PHONY: install demo test test-all lint format clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install "$(TORCH)"
	$(BIN)/python -m pip install -e ".[dev]"
	$(BIN)/sana-like zoo fetch
	touch $@

demo: install
	$(BIN)/sana-like generate "a red apple, 3d" --seed 1 --output outputs/demo.png

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile

test-all: install
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not gpu"

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build outputs .pytest_cache .mypy_cache .ruff_cache
