"""Real jobs that keep every step in memory: ranks are killed at each point of a save, and nothing wrong is ever loaded.

Two ranks train with whole numbers, so sums are exact. Each attempt ends at a planned point: before a save, between the first and
the last byte of it, or right after it. The next one starts from memory at that step or the one before, and in the end the
weights are those of an undisturbed run.
"""

from __future__ import annotations

import os
from pathlib import Path

from jobs import run, script

STEPS = 40
OPTIONS = ("--nproc-per-node", "2", "--restart-grace", "0.3", "--max-restarts", "9")
TRAIN = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from robust_run import checkpoint, report
from robust_run.ckpt_io.memory.client import MemoryClient

HERE = os.path.dirname(os.path.abspath(__file__))
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
plan = json.load(open(f"{HERE}/plan.json"))
who, when, where = plan[attempt] if attempt < len(plan) else (-1, -1, "")


def die(at, place):
    if (rank, at, place) == (who, when, where):
        open(f"{HERE}/died.{attempt}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


copied = MemoryClient.copied


def dies_before_it_is_copied(self, buffer, used_bytes):
    die(buffer.step, "in")
    copied(self, buffer, used_bytes)


MemoryClient.copied = dies_before_it_is_copied
dist.init_process_group("gloo")
weights = torch.arange(1, 1 + 1000, dtype=torch.int64)
state = {"weights": weights, "seen": []}
begin = checkpoint.load(state) or 0
assert state["seen"] == list(range(1, begin + 1)), (begin, state["seen"])
with open(f"{HERE}/starts", "a") as starts:
    print(attempt, rank, begin, os.environ.get("ROBUST_RESUME", "-"), file=starts)
for step in range(begin + 1, STEPS + 1):
    part = (weights * (rank + 3) + step * 7919) % 2147483647
    dist.all_reduce(part)
    weights.copy_((weights * 31 + part) % 2147483647)
    state["seen"].append(step)
    die(step, "before")
    checkpoint.save(state, step=step)
    die(step, "after")
    report(step=step)
print("sum", int(weights.sum()), flush=True)
dist.destroy_process_group()
"""


def undisturbed() -> int:
    import torch

    weights = torch.arange(1, 1 + 1000, dtype=torch.int64)
    for step in range(1, STEPS + 1):
        part = sum((weights * (rank + 3) + step * 7919) % 2147483647 for rank in range(2))
        weights = (weights * 31 + part) % 2147483647
    return int(weights.sum())


def memory_folders(run_id: str) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"robust-run-{run_id}")]


def test_ranks_that_die_at_any_point_of_a_save_cost_one_step_at_most(tmp_path: Path) -> None:
    plan = [(1, 9, "in"), (0, 15, "before"), (1, 20, "after"), (0, 27, "in")]
    (tmp_path / "plan.json").write_text(str([list(each) for each in plan]).replace("'", '"'))
    code, job = run(tmp_path, *OPTIONS, script(tmp_path, TRAIN.replace("STEPS", str(STEPS))))
    assert code == 0, job.err
    assert all((tmp_path / f"died.{attempt}").exists() for attempt in range(len(plan))), "a fault did not strike"
    chosen = [event for event in job.events("resume_chosen") if event["attempt"]]
    assert [event["source"] for event in chosen] == ["memory"] * len(plan), job.err
    for (_, step, place), event in zip(plan, chosen, strict=True):
        assert event["step"] == step - 1 or (place == "after" and event["step"] == step), (step, place, event)
    for event in chosen:
        assert f"attempt {event['attempt']} starts at step {event['step']} from memory" in job.err
    starts = [line.split() for line in (tmp_path / "starts").read_text().splitlines()]
    assert {(int(attempt), int(begin)) for attempt, _, begin, _ in starts} == {
        (0, 0), *((event["attempt"], event["step"]) for event in chosen)
    }  # fmt: skip
    assert job.out.count(f"sum {undisturbed()}") == 2
    assert memory_folders(job.run_id) == [], "a folder in memory is left"
