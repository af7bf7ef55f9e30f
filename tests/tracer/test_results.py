"""Training gives the same bits with all that robust-run puts into ranks as with nothing of it, in four ways of parallelism.

Over gloo and with few steps; `tests/gpu/test_results.py` has 200 steps over a real NCCL.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jobs import run

pytestmark = pytest.mark.timeout(600)
PROGRAM = str(Path(__file__).parents[1] / "gpu" / "parallel_program.py")
WAYS = ("ddp", "compiled", "fsdp2", "dtensor")


def test_losses_and_weights_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    found = []
    steps = "200" if os.environ.get("TEST_EXAMPLES") == "all" else "25"
    for trace in ("1", "0"):
        env = {**os.environ, "BACKEND": "gloo", "ROBUST_TRACE": trace, "STEPS": steps, "OMP_NUM_THREADS": "1"}
        env |= {"ROBUST_TRACE_PHASES": "host"} if trace == "1" else {}
        code, job = run(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", PROGRAM, *WAYS, env=env)
        assert code == 0, job.err
        found.append(sorted(line.partition("digest ")[2] for line in job.out.splitlines() if "digest " in line))
    assert len(found[0]) == 2 * len(WAYS)
    assert found[0] == found[1]
