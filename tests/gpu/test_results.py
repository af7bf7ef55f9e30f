"""Trainings over a real NCCL give the same bits with all that robust-run puts into them as with nothing of it. See `ground`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import APART
from jobs import running

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
PROGRAM = str(Path(__file__).with_name("parallel_program.py"))


@pytest.mark.parametrize("way", ["ddp", "compiled", "fsdp2", "dtensor"])
def test_200_steps_are_the_same_bit_for_bit(tmp_path: Path, way: str) -> None:
    found = []
    for trace in ("1", "0"):
        env = {**os.environ, **APART, "BACKEND": "nccl", "ROBUST_TRACE": trace}
        with running(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", PROGRAM, way, env=env) as job:
            assert job.finish(250.0) == 0, job.err
            found.append(sorted(line for line in job.out.splitlines() if "digest" in line))
    assert len(found[0]) == 2 and found[0] == found[1]
