# `make demo` and `make test` set up .venv first; a set-up that is current takes a second or two.
.PHONY: setup demo smoke test test-all lint docs wheel release shaders clean

setup:
	@tools/setup.sh

demo: setup
	@.venv/bin/vkprefill generate -f examples/long-prompt.txt

# Under half a minute: an answer, a kernel of each family, a round trip of the server.
smoke: setup
	@.venv/bin/python -m pytest -q -m smoke

# In JOBS processes, each with whole files of tests; each holds some gigabytes of models at most.
JOBS ?= 2

test: setup
	@.venv/bin/python -m pytest -n $(JOBS) --dist loadfile

# Also what is exhaustive: every case where `make test` takes one of each kind; and numpy's other major version.
test-all: setup
	@.venv/bin/python -m pytest --exhaustive -n $(JOBS) --dist loadfile
	@tools/test_numpy.sh

# Client libraries against a server with the built-in model, each in an environment of its own. Needs a package index.
.PHONY: test-clients
test-clients: setup
	@tools/test_clients.sh

# With packages that people who study models have, each group in an environment of its own. Needs a package index.
.PHONY: test-research
test-research: setup
	@tools/test_research.sh

# The reverse proxy of deploy/ before two servers, with TLS. Fetches Debian's nginx where there is none.
.PHONY: test-proxy
test-proxy: setup
	@tools/get_nginx.sh
	@PATH=$(CURDIR)/build/nginx/usr/sbin:$$PATH .venv/bin/python -m pytest tests/e2e/test_reverse_proxy.py

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/python -m tools.check_figures
	@.venv/bin/python -m tools.emulated.record

# The documents as a site in build/docs/site, links checked.
docs: setup
	@.venv/bin/python -c 'import material' 2>/dev/null || .venv/bin/python -m pip install -q 'mkdocs-material>=9.6,<10'
	@.venv/bin/python -m tools.make_docs

# A self-contained wheel, and the sdist that it is made from, in dist/.
wheel: setup
	@tools/build_wheel.sh .venv/bin/python

# The same for every Python found, each wheel tried in a bare root (as root); nothing is published.
release: setup
	@tools/release.sh

shaders: setup
	@.venv/bin/python tools/compile_shaders.py

clean:
	rm -rf .venv build dist *.egg-info vkprefill/spirv vkprefill/_barrier*.so vkprefill/_companion*.so .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The kernels and the model on a second Vulkan driver for the CPU, with other limits than Mesa's (subgroups of 4).
.PHONY: test-swiftshader
test-swiftshader: setup
	@tools/get_swiftshader.sh
	@VK_ICD_FILENAMES=$(CURDIR)/build/swiftshader/vk_swiftshader_icd.json \
	VK_DRIVER_FILES=$(CURDIR)/build/swiftshader/vk_swiftshader_icd.json \
	.venv/bin/python -m pytest tests/shaders tests/model

# The newest Mesa driver for AMD, unpacked in build/780m, and an emulated Radeon 780M beneath it (tools/run_780m.sh runs Python on it).
.PHONY: setup-780m
setup-780m: setup
	@tools/setup_780m.sh

# Every kernel and the models on it; CHIP=gfx1150 and others of tools/emu780m/device/chips.cpp.
.PHONY: test-780m
test-780m: setup-780m
	@.venv/bin/python -m tools.test_780m $(if $(CHIP),--chip $(CHIP))

# Tests, then benchmarks of record, on a GPU.
.PHONY: check-gpu
check-gpu: setup
	@tools/check_gpu.sh
