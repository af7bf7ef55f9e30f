"""A job that keeps what its GPU has in memory, step by step, goes on from there with the same weights. See `ground`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import APART
from jobs import running, script
from launcher.memory.test_memory_jobs import OPTIONS, STEPS, TRAIN, undisturbed

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
ON_GPU = TRAIN.replace('"gloo"', '"nccl"').replace("dtype=torch.int64)", 'dtype=torch.int64, device="cuda")')


def test_ranks_that_die_around_a_save_of_what_a_gpu_has_cost_two_steps_at_most(tmp_path: Path) -> None:
    plan = [(1, 9, "in"), (0, 15, "before"), (1, 20, "after")]
    (tmp_path / "plan.json").write_text(str([list(each) for each in plan]).replace("'", '"'))
    text = 'import os\nos.environ["NCCL_HOSTID"] = "machine-" + os.environ["RANK"]\n' + ON_GPU
    path = script(tmp_path, text.replace("STEPS", str(STEPS)))
    env = {**os.environ, **APART}
    with running(tmp_path, *OPTIONS, path, env=env) as job:
        assert job.finish(300.0) == 0, job.err
        chosen = [event for event in job.events("resume_chosen") if event["attempt"]]
    print(job.err[-4000:])
    assert all((tmp_path / f"died.{attempt}").exists() for attempt in range(len(plan))), "a fault did not strike"
    assert [event["source"] for event in chosen] == ["memory"] * len(plan), job.err
    for (_, step, place), event in zip(plan, chosen, strict=True):
        # Over NCCL a rank does not wait for its peers in a step, so one that dies may be a step ahead of what all have saved.
        most = {"before": 2, "in": 2, "after": 1}[place]
        assert step - most <= event["step"] <= step, (step, place, event)
    assert job.out.count(f"sum {undisturbed()}") == 2
