"""Real jobs that keep their steps in memory by way of torch.distributed.checkpoint, and the example that does with two calls."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from jobs import run, running, script, wait_for

pytestmark = pytest.mark.timeout(600)
EXAMPLE = Path(__file__).parents[3] / "examples" / "train_gpt.py"
STEPS = 12
#: Rank and step, after whose save it is killed, by attempt.
PLAN = [(1, 4), (0, 7)]
TRAIN = f"""
import os, signal
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from robust_run import checkpoint

HERE = os.path.dirname(os.path.abspath(__file__))
rank, attempt, plan = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), {PLAN}
dist.init_process_group("gloo")
group = dist.new_group(backend="gloo")
state = {{"weights": torch.arange(1, 1001), "seen": []}}
reader = checkpoint.MemoryReader()
if reader.step is not None:
    dcp.load(state, storage_reader=reader)
begin = reader.step or 0
assert state["seen"] == list(range(1, begin + 1)), (begin, state["seen"])
print("rank", rank, "attempt", attempt, "begins at", begin, os.environ.get("ROBUST_RESUME", "-"), flush=True)
for step in range(begin + 1, {STEPS} + 1):
    part = (state["weights"] * (rank + 3) + step * 7919) % 2147483647
    dist.all_reduce(part)
    state["weights"].copy_((state["weights"] * 31 + part) % 2147483647)
    state["seen"].append(step)
    saving = dcp.async_save(state, storage_writer=checkpoint.MemoryWriter(step=step), process_group=group)
    saving.result()
    if attempt < len(plan) and (rank, step) == plan[attempt]:
        open(f"{{HERE}}/died.{{attempt}}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
print("sum", int(state["weights"].sum()), flush=True)
dist.destroy_process_group()
"""


def undisturbed() -> int:
    import torch

    weights = torch.arange(1, 1001)
    for step in range(1, STEPS + 1):
        part = sum((weights * (rank + 3) + step * 7919) % 2147483647 for rank in range(2))
        weights = (weights * 31 + part) % 2147483647
    return int(weights.sum())


def test_a_job_that_saves_with_dcp_goes_on_from_memory_and_ends_in_storage(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--restart-grace", "0.3", "--ckpt-dir", str(tmp_path / "ckpt"))
    code, job = run(tmp_path, *options, script(tmp_path, TRAIN))
    assert code == 0, job.err
    assert all((tmp_path / f"died.{attempt}").exists() for attempt in range(len(PLAN))), "a fault did not strike"
    chosen = [event for event in job.events("resume_chosen") if event["attempt"]]
    assert [event["source"] for event in chosen] == ["memory"] * len(PLAN), job.err
    for (_, step), event in zip(PLAN, chosen, strict=True):
        assert step - 1 <= event["step"] <= step, "that it is whole may not have been said yet"
        assert job.out.count(f"attempt {event['attempt']} begins at {event['step']} rrck+memory://") == 2
    assert job.out.count(f"sum {undisturbed()}") == 2
    assert f"step-{STEPS}" in os.listdir(tmp_path / "ckpt"), "written from memory as the job ended"


def test_the_example_goes_on_from_memory_and_ends_with_the_weights_of_a_run_that_nobody_disturbed(
    tmp_path: Path,
) -> None:
    size = "--steps 24 --checkpoint-every 10 --width 32 --layers 1 --heads 2 --block 32 --batch 4 --log-every 1".split()
    two = ("--nproc-per-node", "2")
    code, calm = run(tmp_path, *two, str(EXAMPLE), "--out", str(tmp_path / "calm"), *size)
    assert code == 0, calm.err
    # The program that is told to stay at a step, so that it is certain where it is killed.
    held = script(
        tmp_path,
        f"""
        import os, sys, time
        sys.path.insert(0, {str(EXAMPLE.parent)!r})
        sys.dont_write_bytecode = True
        import train_gpt  # which uses robust_run.checkpoint
        keep = train_gpt.keep
        def keep_and_stay(state, step, args):
            keep(state, step, args)
            if (step, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (15, "0"):
                open("here-" + os.environ["RANK"], "w").close()
                time.sleep(600)
        train_gpt.keep = keep_and_stay
        train_gpt.main()
        """,
    )
    options = (*two, "--restart-grace", "0.3", "--ckpt-dir", str(tmp_path / "ckpt"))
    with running(tmp_path, *options, held, "--out", str(tmp_path / "stormy"), *size) as job:
        for rank in range(2):
            job.wait_for_file(f"here-{rank}", tmp_path)
        wait_for(lambda: (tmp_path / "ckpt" / "step-10" / "MANIFEST").exists(), "step 10 in storage")
        os.kill(job.pids(0)[1], signal.SIGKILL)
        assert job.finish() == 0, job.err
    (chosen,) = [event for event in job.events("resume_chosen") if event["attempt"]]
    assert chosen["source"] == "memory" and chosen["step"] in (14, 15), chosen
    assert f"resumed from step {chosen['step']} (rrck+memory://" in job.out
    assert {"step-10", "step-24"} <= set(os.listdir(tmp_path / "ckpt"))
    quiet, loud = (json.loads((tmp_path / name / "final.json").read_text()) for name in ("calm", "stormy"))
    assert quiet["weights_sha256"] == loud["weights_sha256"]
