"""A job over a real NCCL heals as one over gloo does: warm processes hold nothing of CUDA, and what they become trains on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import APART
from gpu.job import healed

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_over_nccl_goes_on_after_the_loss_of_a_rank_from_warm_processes(tmp_path: Path, number: int) -> None:
    found = healed(tmp_path, "nccl", {**os.environ, **APART}, number)
    assert found.rungs[0] == "spawn" and set(found.rungs[1:]) <= {"promote", "fork"}, found.rungs
    assert found.began_with_cuda == [False] * len(found.began_with_cuda), "a worker inherited a CUDA context"
    assert len(set(found.sums)) == 1, "ranks and attempts compute the same"
