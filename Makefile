# `make demo` and `make test` set up .venv first; a set-up that is current takes a second or two.
.PHONY: setup demo test lint shaders clean

setup:
	@tools/setup.sh

demo: setup
	@.venv/bin/vkprefill generate -f examples/long-prompt.txt

test: setup
	@.venv/bin/python -m pytest

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

shaders: setup
	@.venv/bin/python tools/compile_shaders.py

clean:
	rm -rf .venv build dist *.egg-info vkprefill/spirv vkprefill/_barrier*.so .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
