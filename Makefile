# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/$(if $(shell command -v nvidia-smi),gpu,cpu).lock
READY := $(VENV)/.ready
TOOLS := .tools
TOOLS_READY := $(TOOLS)/.ready
DOCS := .docs
DOCS_READY := $(DOCS)/.ready
COMPILE := UV_CUSTOM_COMPILE_COMMAND='make lock' $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-annotate --python-version 3.11 --python-platform x86_64-unknown-linux-gnu

TARGETS ?= runner store learner inference
BUILDER ?= $(notdir $(firstword $(shell which docker podman buildah 2>/dev/null)))
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: setup demo test test-all test-unit test-slow chaos history models hosts bench bench-compare bench-ui bench-async bench-learner bench-credit bench-policies bench-pretrained bench-kv bench-prompts bench-weights bench-sizing gpu gpu-kit fuzz serving-faults check format clean lock sbom audit pin-images images dist docs

$(READY): $(LOCK) pyproject.toml
	@[ -d $(VENV)/lib ] || [ $$(df --output=avail -k . | tail -1) -ge 6000000 ] || { echo "the packages fill 5.3 GB, and less than 6 GB are free here" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

setup: $(READY) ## everything in .venv: 5.3 GB, 4 minutes on two cores with a fast network

demo: $(READY) ## train the calculator agent, watch it get better, and see the report
	$(BIN)/lightningbus demo

check: $(READY) ## format, lint, types, the rules which package may import which, sentences, names and docstrings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.style.sentences
	$(BIN)/python -m tests.style.identifiers
	$(BIN)/python -m tests.style.docstrings
	$(BIN)/python -m tests.style.backticks

test: $(READY) ## unit and integration tests, and the end-to-end tests of the main job
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow and not long and (not e2e or main_job)"

test-all: $(READY) ## every test but the slow ones, against real servers, vLLM and agents
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5

test-unit: $(READY) ## the tests that start no process
	$(BIN)/python -m pytest -n 2 -m unit

test-slow: $(READY) ## the examples' workflows, each trained a little through vLLM
	$(BIN)/python -m pytest -m slow

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(TOOLS) $(DOCS) .gpukit build site runs

chaos: $(READY) ## kill, stop, cut and fill everything, and count what was lost; SEED=n repeats a run
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(KILLS),--kills $(KILLS)) $(if $(ROLLOUTS),--rollouts $(ROLLOUTS))

history: $(READY) ## small systems under faults, each judged from outside by wire and SQL alone; SEEDS="3 4"; half an hour
	$(BIN)/python -m tests.history $(if $(SEEDS),--seeds $(SEEDS))

models: $(READY) ## tiny models of fifty families through learner and vLLM, and through whole runs: docs/models.md; ONLY="llama qwen3"; two hours
	$(BIN)/python -m tests.families $(if $(ONLY),--only $(ONLY))
	$(BIN)/python -m tests.families --train $(if $(ONLY),--only $(ONLY))

hosts: $(READY) ## a run on hosts of network namespaces, each cut off in turn, three times over; wants root
	for time in 1 2 3; do HOSTS=full $(BIN)/python -m pytest tests/hosts -m "slow or not slow" || exit 1; done

bench: $(READY) ## how fast the store, the bus and the gateways are, half an hour; PEER=, PEER_V1=: pythons of agentlightning 0.3 and 1.0
	$(BIN)/python -m benchmarks $(if $(PEER),--peer $(PEER)) $(if $(PEER_V1),--peer-v1 $(PEER_V1)) $(if $(ONLY),--only $(ONLY))

bench-compare: $(READY) ## the last figures beside those of a commit, by ratios within a run; COMMIT=HEAD~1, ONLY="ingest gateway"
	$(BIN)/python -m benchmarks.before_after $(if $(COMMIT),--commit $(COMMIT)) $(ONLY)

bench-ui: $(READY) ## how long pages and reports take, of a million and of ten million spans
	$(BIN)/python -m benchmarks.store.ui

bench-async: $(READY) ## synchronous against asynchronous training, to a target accuracy; goes on where it was stopped
	$(BIN)/python -m experiments.asynchrony $(if $(ONLY),--only $(ONLY))

bench-learner: $(READY) ## tokens a second of a training step, beside verl's engine and a plain loop, on CPUs; ROUNDS=7
	$(BIN)/python -m benchmarks.learner $(if $(ROUNDS),--rounds $(ROUNDS))

bench-credit: $(READY) ## credit methods against each other, steps to a target reward; hours; goes on where it was stopped
	$(BIN)/python -m experiments.credit $(if $(ONLY),--methods $(ONLY))

bench-policies: $(READY) ## two policies against one shared policy, and two players against each other; goes on where it was stopped
	$(MAKE) -C examples/text_to_sql env
	$(BIN)/python -m experiments.policies $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

bench-pretrained: $(READY) ## the demo and the examples that train SmolLM2-135M-Instruct, over seeds; hours; goes on where it was stopped; SINCE=commit makes older runs again
	$(BIN)/python -m experiments.pretrained $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ONLY),--only $(ONLY)) $(if $(SINCE),--since $(SINCE))

bench-kv: $(READY) ## what a swap amid an answer does to log-probabilities, by kv_cache_on_swap
	$(BIN)/python -m experiments.kv_cache

bench-prompts: $(READY) ## how soon a prompt is found, and weights alone beside turns; goes on where it was stopped; SEEDS="0 1"
	$(BIN)/python -m experiments.prompts $(if $(SEEDS),--seeds $(SEEDS))

bench-weights: $(READY) ## a weight version by each transport, whole and as a delta; SIZES=0.5M,5M and MODELS=0.6M measure some
	$(BIN)/python -m benchmarks.weights $(if $(SIZES),--sizes $(SIZES)) $(if $(MODELS),--models $(MODELS))

bench-sizing: $(READY) ## what one of everything costs, what 10,000 runners come to, and what is full first
	$(BIN)/python -m benchmarks.sizing

gpu: $(READY) ## everything that needs a GPU to be known, 40 minutes; goes on where it was stopped; MINUTES=, ONLY=a,b
	$(BIN)/python -m benchmarks.gpu $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

gpu-kit: $(READY) ## parts for a GPU machine without a network, in .gpukit: deploy/airgapped/README.md; PARTS="learner vllm"
	$(BIN)/python -m deploy.airgapped $(PARTS)

fuzz: $(READY) ## both gateways by their OpenAPI, and a million wrong inputs for every decoder; N=10000, ONLY=OTLP, SEED=n
	FUZZ_EXAMPLES=$(or $(EXAMPLES),500) $(BIN)/python -m pytest --timeout=0 tests/fuzz/test_gateways.py
	$(BIN)/python -m tests.fuzz $(if $(N),--inputs $(N)) $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED))

serving-faults: $(READY) ## faults in the serving path, for the auditor to find; ONLY="a fault"
	$(BIN)/python -m tests.serving_faults $(if $(ONLY),--only "$(ONLY)")

$(TOOLS_READY): requirements/tools.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/tools.lock
	touch $@

lock: $(TOOLS_READY) ## the hashes of every package in the locks, anew; versions stay as they are
	for name in cpu gpu; do $(COMPILE) --no-deps requirements/$$name.lock --output-file requirements/$$name.lock || exit 1; done
	$(COMPILE) --constraint requirements/gpu.lock --extra learner --extra s3 --extra otel pyproject.toml requirements/build.in requirements/learner-gpu.in --output-file requirements/learner-gpu.lock
	$(COMPILE) --extra inference --extra s3 --extra otel pyproject.toml requirements/build.in requirements/inference-gpu.in --output-file requirements/inference-gpu.lock
	$(COMPILE) --constraint requirements/cpu.lock --extra otel pyproject.toml requirements/build.in --output-file requirements/runner.lock
	$(COMPILE) --constraint requirements/cpu.lock --extra store --extra otel pyproject.toml requirements/build.in --output-file requirements/store.lock
	$(COMPILE) requirements/tools.in --output-file requirements/tools.lock
	$(COMPILE) requirements/docs.in --output-file requirements/docs.lock

sbom: $(TOOLS_READY) ## what the locks install, as CycloneDX: sbom-cpu.json and its like
	$(TOOLS)/bin/python -m deploy.sbom .

audit: $(TOOLS_READY) ## known vulnerabilities of the locks; fails too where the database was not reached
	for name in cpu gpu learner-gpu inference-gpu; do $(TOOLS)/bin/python requirements/audit.py requirements/$$name.lock || exit 1; done

pin-images: ## every image of deploy/ with the digest it has in its registry now; wants docker and a network
	$(PYTHON) deploy/pin_images.py

images: ## an image for each role, by docker, podman or buildah; TARGETS="runner store"; IMAGE_LOCK=cpu needs no GPU; BASE=image of Python 3.11
	@[ -n "$(BUILDER)" ] || { echo "install docker, podman or buildah: none of them is here" >&2; exit 1; }
	for target in $(TARGETS); do $(BUILDER) build $(if $(filter docker,$(BUILDER)),,--ignorefile deploy/Dockerfile.dockerignore) $(BUILD_OPTIONS) \
	  $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(IMAGE_LOCK),--build-arg LOCK=$(IMAGE_LOCK)) \
	  --file deploy/Dockerfile --target $$target --tag lightningbus-$$target:$(VERSION) . || exit 1; done

dist: $(TOOLS_READY) ## the wheel and the source distribution of a clean commit in dist, checked, with an SBOM and their provenance
	$(TOOLS)/bin/python -m deploy.distributions dist

$(DOCS_READY): requirements/docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/docs.lock
	touch $@

docs: $(DOCS_READY) ## the documentation as a site in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
