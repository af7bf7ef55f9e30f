"""Jobs of tests that start from one warm process for each process of tests, as where `robust warm start` was typed.

Importing torch takes a CPU for some 1.5 s in every rank, more than all else that most tests do. So jobs of the files below, whose
tests are of what comes after the start, are forked; those of the guarantee set start from nothing everywhere, and with
TEST_WARM=off, as `make test-all` has it, all do. So do jobs that do not fit: a PYTHONPATH of their own. On simulated hosts it is
the launchers that are forked, see `host_warmth.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from robust_run.launcher.start.warm.key import READ_AT_IMPORT

AT_START = frozenset(os.environ)
OURS = ("ROBUST_", "PET_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "SLURM", "SRUN_", "SBATCH_")
WANTED = os.environ.get("TEST_WARM") != "off"
TESTS = str(Path(__file__).parent)
WARM = (sys.executable, "-c", "from robust_run.robust_cli import main; main()", "warm")
START = (
    sys.executable,
    "-c",
    f"import sys; sys.path[1:1] = [{TESTS!r}]; import kept_frozen; kept_frozen.start()",
    "warm",
)
FILES = frozenset(
    """
    ckpt_io/mount/test_saving_jobs.py examples/test_dapo_job.py examples/test_tppo.py examples/test_train_gpt.py
    faults/test_matrix.py faults/test_waits.py
    launcher/api/test_live_report.py launcher/api/test_prometheus.py launcher/controller/test_outlook.py
    launcher/facts/test_job_facts.py launcher/code_versions/test_code_jobs.py launcher/agent/test_endings.py
    launcher/agent/test_healing.py launcher/watching/test_health_jobs.py launcher/watching/test_ladder_jobs.py
    launcher/watching/test_nccl_jobs.py launcher/watching/test_nccl_stall.py launcher/memory/test_memory_dcp_jobs.py
    launcher/memory/test_memory_dir_jobs.py launcher/memory/test_memory_flush_faults.py
    launcher/memory/test_memory_flush_jobs.py launcher/watching/test_reduced_jobs.py
    launcher/agent/test_rank_hosts_store.py launcher/agent/test_resume_jobs.py launcher/watching/test_slow_jobs.py
    launcher/watching/test_tracing.py launcher/watching/test_unseen_jobs.py launcher/watching/test_what_if_jobs.py
    test_warm_ground.py
    """.split()
)
"""Below tests/."""
ON_HOSTS = ("faults/", "kubernetes/", "launcher/many/", "test_helper_forks.py", "test_warm_ground.py")
"""Folders and files below tests/ whose launchers on simulated hosts are forked from a process that has imported torch."""
PRELOAD = "torch,torch.distributed,torch._dynamo"
"""What jobs ask for, and what torch's own optimizers import in each rank that makes one, which takes as long as torch did."""
START_S = 500.0
PATIENT_S = "30"
"""So long a job waits for it: busy machines are none of a test's business."""
SEVERAL = {"OMP_NUM_THREADS": "1"}
"""What jobs of several workers have by default. Tests of these files have it set: so jobs of one start from the same process."""


def set_by_imports() -> list[str]:
    """Return the variables that imports of tests have set, as torch's compiler does: programs and warm processes have none."""
    return [name for name in os.environ if name not in AT_START and name.startswith(READ_AT_IMPORT)]


def usual_environment() -> dict[str, str]:
    """Return the environment without these, for what is started before a test has been rid of them."""
    imported = set_by_imports()
    return {name: value for name, value in os.environ.items() if name not in imported}


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the variables of launchers, and those that imports of earlier tests have set."""
    for name in [*filter(lambda name: name.startswith(OURS), os.environ), *set_by_imports()]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def warm_folder() -> Iterator[Path]:
    """The folder of a warm process, with a path that is short enough for a socket."""
    with started({}) as folder:
        yield folder


@contextmanager
def started(variables: Mapping[str, str], limit_s: float = START_S) -> Iterator[Path]:
    """Have a warm process for the time of a block, with some variables that its jobs have, too. Give its folder.

    `limit_s`: it imports with low priority, so that it may take minutes among other tests.
    """
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    env = {**usual_environment(), **variables, "ROBUST_WARM_FOLDER": str(folder)}
    try:
        subprocess.run(
            [*START, "start", "--idle-limit", "90m", "--preload", PRELOAD],
            env=env,
            check=True,
            timeout=limit_s,
            stdout=subprocess.DEVNULL,
        )
        yield folder
    finally:
        subprocess.run([*WARM, "stop", "--all"], env=env, timeout=START_S, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def fits(test: pytest.Item) -> bool:
    """Whether jobs of this test are to start from a warm process."""
    return _may_be_warm(test) and _place(test) in FILES


def fits_on_hosts(test: pytest.Item) -> bool:
    """Whether launchers of this test on simulated hosts are to be forked."""
    return _may_be_warm(test) and _place(test).startswith(ON_HOSTS)


def _may_be_warm(test: pytest.Item) -> bool:
    return WANTED and test.get_closest_marker("guarantee") is None


def _place(test: pytest.Item) -> str:
    return Path(test.path).relative_to(Path(__file__).parent).as_posix()
