"""Jobs of tests that start from one warm process for each process of tests, as where `robust warm start` was typed.

Importing torch takes a CPU for some 1.5 s in every rank, more than all else that most tests do. So jobs of the files below, whose
tests are of what comes after the start, are forked; those of the guarantee set start from nothing everywhere, and with
TEST_WARM=off, as `make test-all` has it, all do. So do jobs that do not fit: simulated hosts, a PYTHONPATH of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

WANTED = os.environ.get("TEST_WARM") != "off"
WARM = (sys.executable, "-c", "from robust_run.robust_cli import main; main()", "warm")
FILES = frozenset(
    """
    ckpt_io/mount/test_saving_jobs.py examples/test_train_gpt.py faults/test_matrix.py faults/test_waits.py
    launcher/api/test_live_report.py launcher/api/test_prometheus.py launcher/controller/test_outlook.py
    launcher/notify/test_jobs.py launcher/test_code_jobs.py launcher/test_endings.py launcher/test_healing.py
    launcher/test_health_jobs.py launcher/test_ladder_jobs.py launcher/test_nccl_jobs.py launcher/test_nccl_stall.py
    launcher/test_memory_dcp_jobs.py launcher/test_memory_dir_jobs.py
    launcher/test_memory_flush_jobs.py launcher/test_resume_jobs.py
    launcher/test_setup_jobs.py launcher/test_tracing.py launcher/test_unseen_jobs.py
    test_warm_ground.py
    """.split()
)
"""Below tests/."""
HOST_FILES = frozenset(
    """
    launcher/many/test_code_updates.py launcher/many/test_controller_dies.py launcher/many/test_hangs.py
    launcher/many/test_health.py launcher/many/test_hostile_network.py launcher/many/test_journal_lost.py
    launcher/many/test_ladder.py launcher/many/test_memory_copies.py launcher/many/test_memory_flush_nodes.py
    launcher/many/test_memory_nodes.py launcher/many/test_memory_power.py launcher/many/test_memory_spread.py
    launcher/many/test_node_loss.py launcher/many/test_one_run.py launcher/many/test_operators.py
    launcher/many/test_resume_nodes.py launcher/many/test_return.py launcher/many/test_stops.py launcher/many/test_takeover.py
    launcher/many/test_training_heals.py test_warm_ground.py
    """.split()
)
"""Those whose jobs run on simulated hosts: each host has a warm process, forked from one for all (see `host_warmth`)."""
PRELOAD = "torch,torch.distributed,torch._dynamo"
"""What jobs ask for, and what torch's own optimizers import in each rank that makes one, which takes as long as torch did."""
START_S = 170.0
PATIENT_S = "30"
"""So long a job waits for it: busy machines are none of a test's business."""


@pytest.fixture(scope="session")
def warm_folder() -> Iterator[Path]:
    """The folder of a warm process, with a path that is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    env = {**os.environ, "ROBUST_WARM_FOLDER": str(folder)}
    try:
        subprocess.run(
            [*WARM, "start", "--idle-limit", "20m", "--preload", PRELOAD],
            env=env,
            check=True,
            timeout=START_S,
            stdout=subprocess.DEVNULL,
        )
        yield folder
    finally:
        subprocess.run([*WARM, "stop", "--all"], env=env, timeout=START_S, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def fits(test: pytest.Item, files: frozenset[str] = FILES) -> bool:
    """Whether jobs of this test are to start from a warm process."""
    place = Path(test.path).relative_to(Path(__file__).parent).as_posix()
    return WANTED and place in files and test.get_closest_marker("guarantee") is None
