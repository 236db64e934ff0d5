# What a newcomer types: make serve, make test. Both install first, into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
# The requirement or wheel of torch, and the index that it comes from (empty: pip's own).
# A CPU-only machine names PyTorch's CPU index here and is spared gigabytes of CUDA.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
MODEL ?=
ARGS ?=

BIN := .venv/bin

# Both variables reach isolated builds: the first up to pip 25.2, the second from 25.3.
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt

.PHONY: install install-test constraints serve test test-long test-versions hostile recovery-test chaos structured-test check gpu-check gpu-wheels format protos docs demo \
	compose-test clients-test api-test clean

install: .venv/installed
install-test: .venv/installed-test

SOURCES := pyproject.toml constraints.txt setup.py Makefile $(wildcard kernels/cpu/native/*)

.venv/installed: EXTRAS := all
.venv/installed: $(SOURCES)
	$(install)
	touch $@

# What tests need comes with the package in one go: it compiles once.
.venv/installed-test: EXTRAS := all,test
.venv/installed-test: $(SOURCES)
	$(install)
	touch .venv/installed $@

# torch comes first and without dependencies, because an index of torch has few versions of them. pip compiles no Python
# files of an editable package, and where PYTHONDONTWRITEBYTECODE is set, each process would compile them at its start.
define install
$(PYTHON) -m venv .venv
$(PINNED) $(BIN)/pip install --no-deps $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
$(PINNED) $(BIN)/pip install -e '.[$(EXTRAS)]'
$(BIN)/python -m compileall -q engine_core kernels services
endef

# Writes constraints.txt anew: the newest versions that pyproject.toml allows.
constraints:
	$(PYTHON) -m tests.versions pin

serve: install
	$(BIN)/tandem serve $(MODEL) $(ARGS)

# Two processes, each a file of tests at a time; one thread each for torch's own operations, or they wait for each other.
PYTEST := -n 2 --dist loadfile
test test-long test-versions: export OMP_NUM_THREADS = 1
# Python keeps what it compiles, also here: pytest spends half of the collection on the asserts of test files.
test test-long test-versions: export PYTHONDONTWRITEBYTECODE =

test: check
	$(BIN)/python -m pytest $(PYTEST) $(ARGS)

# What takes minutes each, and is not a part of `make test`.
test-long: install-test
	$(BIN)/python -m pytest -m long $(PYTEST) $(ARGS)

# The tests outside e2e, loadtest/serving and recovery, and without that of chaos on a server, with the lowest, then with the
# newest versions that pyproject.toml allows (20 minutes). Settings: TORCH, TORCH_INDEX; ARGS go to pytest.
test-versions:
	$(PYTHON) -m tests.versions test lowest $(PYTEST) $(ARGS)
	$(PYTHON) -m tests.versions test newest $(PYTEST) $(ARGS)

check: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All that needs a GPU, as one table; without one, every row says "not run". Runs straight from the tree, with .venv's Python
# or any that has the packages of docs/gpu.md: make gpu-check PYTHON_GPU=python3 ARGS="--call A"
PYTHON_GPU ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
gpu-check: $(if $(filter $(BIN)/python,$(PYTHON_GPU)),install-test)
	PYTHONPATH=. $(PYTHON_GPU) -m loadtest.gpu $(ARGS)

# Fetches what a machine with a GPU and without a network needs beside the packages of docs/gpu.md, into gpu-wheels, and
# prints the line that installs it there. ARGS: --python 3.12, --also NAME==VERSION.
gpu-wheels: install-test
	$(BIN)/python -m loadtest.gpu.wheels gpu-wheels $(ARGS)

# 50,000 malformed frames and calls on each edge between processes and 100,000 hostile HTTP requests, beside 16 clients;
# then each attack on the HTTP port for 20 s, with the lag of the shim's event loop. ARGS="--frames N --seed N".
hostile: install-test
	$(BIN)/python -m tests.security $(ARGS)
	$(BIN)/python -m tests.security.front

# Sixty kills at random under live answers (a few minutes); ARGS="--seed N" repeats a run that failed.
recovery-test: install-test
	$(BIN)/python -m tests.recovery $(ARGS)

# Faults of every kind under 200 mixed requests, in parts of at most 40 minutes: ARGS="--seed N --faults M --out FILE"; "--sum FILE"
# adds parts up; "soak --minutes 60" is one fault a minute. The seed repeats a part.
chaos: install-test
	$(BIN)/python -m tests.chaos $(ARGS)

# Answers of a random model under every form of structured output, in process and through a server (a few minutes), then
# hostile forms beside other requests; ARGS="--seed N" repeats a run.
structured-test: install-test
	$(BIN)/python -m loadtest.studies.structured $(ARGS)
	$(BIN)/python -m loadtest.studies.structured_hostile

format: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: install-test
	$(BIN)/python -m protos.generate

# Writes the pages that are made from the code anew: options, API, models, vLLM.
docs: install-test
	$(BIN)/python -m services.options.serving_page > docs/serving.md
	$(BIN)/python -m services.shim.reference.page > docs/api.md
	$(BIN)/python -m services.worker.models.page > docs/models.md
	$(BIN)/python -m services.shim.reference.vllm_page > docs/coming-from-vllm.md

demo: install-test
	$(BIN)/python -m demo.train --out demo/checkpoint

# Brings compose.yaml up with the engine that DOCKER_HOST names, asks it by curl, takes it down (a few minutes).
# Settings: BUILD_NETWORK (host, where only the host reaches the package index), TORCH, TORCH_INDEX, TANDEM_PORT.
compose-test:
	$(PYTHON) -m tests.compose

# Unmodified client programs of others, each in an environment of its own under build/clients (30 minutes at first,
# then 7; needs npm and node). ARGS: names of clients; --tandem CMD, --cwd DIR, --url URL. Settings: TORCH, TORCH_INDEX.
clients-test: install
	$(BIN)/python -m tests.clients $(ARGS)

# Sends requests made from /openapi.json to a running server, for ten minutes; ARGS: --seed N --seconds N.
api-test: install
	$(BIN)/python -m tests.openapi $(ARGS)

clean:
	rm -rf .venv build gpu-wheels *.egg-info .mypy_cache .ruff_cache .pytest_cache
