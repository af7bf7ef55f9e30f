# Everything a developer or a newcomer types. `make demo`, `make test` and `make test-all` set up a fresh machine by themselves.

# The distribution's Python where it can do all: pyenv builds one without profile-guided optimisation, and a seventh more CPU is used.
FIT := import ensurepip, os, sys, sysconfig as of; sys.exit(sys.version_info < (3, 10) or not os.path.exists(of.get_path("include") + "/Python.h"))
PYTHON ?= $(shell for each in /usr/bin/python3 python3; do $$each -c '$(FIT)' 2>/dev/null && echo $$each && exit; done; echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait more than they compute, those with real jobs even more: but what is late by seconds on a busy machine proves nothing.
JOBS ?= $(shell expr $$(nproc) + 3)
MANY_JOBS ?= $(shell expr $$(nproc) + 4)
# What `make test` runs: the tests that are quick, and the guarantee set. Marks are those of tests/tiers.py.
FIRST := guarantee or not (torch or browser or job or hosts or cluster or frameworks)
PYTEST = $(BIN)/python -m pytest -q --dist worksteal --durations=30
# Tests start thousands of processes: where Python may not keep what it compiled, each would compile anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs demo demo-rl demo-serving test test-first test-rest test-every test-all test-thrice soak soak-waits soak-chaos soak-roles soak-memory compiled check format bench gpu torch packages clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# A policy learns from nothing while its rollouts are killed; some minutes.
demo-rl: $(STAMP)
	$(BIN)/python examples/rl/demo.py

# A mixture of experts answers while its members are killed; a minute.
demo-serving: $(STAMP)
	$(BIN)/python examples/serving/demo.py

# The guide as a site, which opens from a disk: build/site/index.html. Fails on links and anchors that lead nowhere.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

compiled: $(STAMP)
	@$(BIN)/python -m compileall -q -j 0 robust_run

# About 6 minutes on 2 cores: checks and tests at the same time.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 check test-first

test-first: $(STAMP) packages compiled
	$(PYTEST) -n $(JOBS) -m '$(FIRST)'

# What `make test` leaves out: torch and checkpoints, browsers, real jobs, environments, simulated hosts, Slurm, HDFS, frameworks of others.
test-rest: $(STAMP) packages compiled
	$(PYTEST) -n $(MANY_JOBS) -m 'not ($(FIRST))'

# Both in one run: reading all tests costs each process a quarter of a minute, so that it is done once. What CI runs.
test-every: $(STAMP) packages compiled
	$(PYTEST) -n $(MANY_JOBS)

# Everything, with all examples of property tests and all waits, and every job from nothing (`tests/warm_ground.py`).
test-all: export TEST_EXAMPLES = all
test-all: export TEST_WAITS = all
test-all: export TEST_WARM = off
test-all: check test-every

test-thrice: $(STAMP) packages compiled
	for run in 1 2 3; do $(PYTEST) -n $(JOBS) || exit 1; done

# HOURS of it, and what was begun then: half for all waits at each length and load, a quarter for waits and work mixed (both write
# docs/soak-waits.md), a fifth for seeded faults, waits and power cuts (docs/soak.md), the rest for power cuts under checkpoints in
# memory, CUTS of them at most (docs/soak-memory.md). Fails if any of the four does.
HOURS ?= 8
SEED ?= 0
SOAK = $(BIN)/python bench/soak.py --seed $(SEED)
CUTS ?= 50
POWER_CUTS = --memory $(CUTS) --page docs/soak-memory.md
EVERY_WAIT = --waits 20,90 --load 0.5,20 --page docs/soak-waits.md
part = $(shell awk 'BEGIN { print $(HOURS) * $(1) }')
soak: $(STAMP) packages compiled
	failed=0; \
	$(SOAK) $(EVERY_WAIT) --hours $(call part,0.5) || failed=1; \
	$(SOAK) --mixed $(call part,0.25) --page docs/soak-waits.md || failed=1; \
	$(SOAK) --hours $(call part,0.2) --page docs/soak.md || failed=1; \
	$(SOAK) $(POWER_CUTS) --hours $(call part,0.05) || failed=1; \
	exit $$failed

# All waits at each length and load alone; those that HOURS do not suffice for are not tried, and the page says how many were.
soak-waits: $(STAMP) packages compiled
	$(SOAK) $(EVERY_WAIT) --hours $(HOURS)

# Random faults over several hosts, CHAOS schedules of them, about a minute each.
CHAOS ?= 100
soak-chaos: $(STAMP) packages compiled
	$(SOAK) --chaos $(CHAOS) --hours $(HOURS) --page docs/soak-chaos.md

# Random faults in jobs of several roles, SCHEDULES of them, a minute or two each; and TRAININGS of DAPO that are struck, which take
# some minutes each.
SCHEDULES ?= 30
TRAININGS ?= 6
soak-roles: $(STAMP) packages compiled
	failed=0; \
	$(SOAK) --roles $(SCHEDULES) --hours $(HOURS) --page docs/soak-roles.md || failed=1; \
	$(SOAK) --dapo $(TRAININGS) --hours $(HOURS) --page docs/soak-roles.md || failed=1; \
	exit $$failed

# Power cuts and deaths in a save under checkpoints in memory: CUTS of them, 20 s each.
soak-memory: $(STAMP) packages compiled
	$(SOAK) $(POWER_CUTS) --hours $(HOURS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell *.md docs examples robust_run

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/recovery.py
	$(BIN)/python bench/frameworks.py
	$(BIN)/python bench/hot_update.py
	$(BIN)/python bench/node_loss.py
	$(BIN)/python bench/slurm_node_loss.py
	$(BIN)/python bench/detect.py
	$(BIN)/python bench/health_evict.py
	$(BIN)/python bench/outliers.py
	$(BIN)/python bench/control_plane.py
	$(BIN)/python bench/tracing_overhead.py
	$(BIN)/python bench/reduced_values.py
	$(BIN)/python bench/nccl_plugin.py
	$(BIN)/python bench/ckpt.py
	$(BIN)/python bench/memory_ckpt.py --steps 40 --no-dlrover
	$(BIN)/python bench/memory_losses.py
	$(BIN)/python bench/memory_resume.py
	$(BIN)/python bench/memory_link.py
	$(BIN)/python bench/striping.py
	$(BIN)/python bench/fuse.py
	$(BIN)/python bench/image_start.py
	$(BIN)/python bench/env_restore.py
	$(BIN)/python bench/faults.py --seeds 1 --minutes 30

# All that only a GPU shows: tests/gpu, the benches that need one, a page (docs/gpu-run.md); 25 minutes at most. The Python must have a
# torch with CUDA: that of the virtual environment if it has, else PYTHON, which then needs what pyproject.toml names, too.
gpu:
	@python=$(BIN)/python; $$python -c "import torch; assert torch.version.cuda" 2>/dev/null || python=$(PYTHON); \
	$$python bench/on_gpu.py

# Jobs, checks, checkpoints and the recorder with another release of torch, in an environment of its own: make torch TORCH=2.6.0
TORCH ?= 2.6.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
OF_TORCH := .venv-torch/$(TORCH)
torch:
	[ -e $(OF_TORCH)/bin/pip ] || $(PYTHON) -m venv $(OF_TORCH)
	$(OF_TORCH)/bin/python -m pip install --quiet --no-compile --index-url $(TORCH_INDEX) torch==$(TORCH)
	$(OF_TORCH)/bin/python -m pip install --quiet --no-compile --editable '.[dev]' torch==$(TORCH)
	PATH=$(CURDIR)/$(OF_TORCH)/bin:$$PATH $(OF_TORCH)/bin/python -m pytest -q --dist worksteal -n $(JOBS) tests/launcher/agent/test_healing.py \
		tests/launcher/watching/test_tracing.py tests/health/checks tests/checkpoint tests/ckpt_io/dcp tests/ckpt_io/foreign \
		tests/tracer/test_recorder.py tests/tracer/native tests/tracer/test_results.py

# System tools that some tests use. A test that misses one is skipped with its reason, which fails `.ci/run`.
TOOLS := setpriv:util-linux ip:iproute2 etcd:etcd-server faketime:faketime openssl:openssl \
	nginx:nginx-light java:openjdk-17-jre-headless fusermount3:fuse3 \
	mksquashfs:squashfs-tools squashfuse_ll:squashfuse umoci:umoci mmdebstrap:mmdebstrap skopeo:skopeo buildah:buildah \
	promtool:prometheus \
	g++:g++ zsh:zsh fish:fish chromium:chromium slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge

packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		missing=""; \
		for tool in $(TOOLS); do command -v "$${tool%%:*}" >/dev/null || missing="$$missing $${tool##*:}"; done; \
		if [ -n "$$missing" ]; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing \
			|| echo "make: could not install$$missing; tests that need them are skipped"; fi; fi

# pip would compile all that is in the packages, which takes a minute of CPU; Python compiles what it imports. What every rank and
# launcher imports is imported once here, else all those of a first job would compile it at the same time.
# A folder that is no environment is never cleared.
$(STAMP): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) "$(VENV)"
	$(BIN)/python -m pip install --quiet --no-compile --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c "import torch, torch.distributed, torch._dynamo, aiohttp, click, fsspec, msgspec, rich.console"
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis robust-runs
