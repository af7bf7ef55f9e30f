# Everything a developer or a newcomer types. `make demo` and `make test` set up a fresh machine by themselves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait more than they compute.
JOBS ?= $(shell expr $$(nproc) + 1)

.PHONY: demo test test-thrice compiled check format bench packages clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Tests start thousands of processes: where Python may not keep what it compiled (PYTHONDONTWRITEBYTECODE), each would compile anew.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q -j 0 robust_run

test: $(STAMP) packages check compiled
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-thrice: $(STAMP) packages compiled
	for run in 1 2 3; do $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal || exit 1; done

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/recovery.py
	$(BIN)/python bench/hot_update.py
	$(BIN)/python bench/node_loss.py
	$(BIN)/python bench/slurm_node_loss.py
	$(BIN)/python bench/detect.py
	$(BIN)/python bench/health_evict.py
	$(BIN)/python bench/outliers.py
	$(BIN)/python bench/control_plane.py
	$(BIN)/python bench/tracing_overhead.py
	$(BIN)/python bench/nccl_plugin.py
	$(BIN)/python bench/ckpt.py
	$(BIN)/python bench/striping.py
	$(BIN)/python bench/fuse.py
	$(BIN)/python bench/image_start.py
	$(BIN)/python bench/env_restore.py
	$(BIN)/python bench/faults.py --seeds 1 --minutes 30

# System tools that some tests use. A test that misses one is skipped with its reason.
TOOLS := setpriv:util-linux ip:iproute2 etcd:etcd-server faketime:faketime openssl:openssl \
	nginx:nginx-light java:openjdk-17-jre-headless fusermount3:fuse3 \
	mksquashfs:squashfs-tools squashfuse_ll:squashfuse promtool:prometheus \
	slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge

packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		missing=""; \
		for tool in $(TOOLS); do command -v "$${tool%%:*}" >/dev/null || missing="$$missing $${tool##*:}"; done; \
		if [ -n "$$missing" ]; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing \
			|| echo "make: could not install$$missing; tests that need them are skipped"; fi; fi

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis robust-runs
