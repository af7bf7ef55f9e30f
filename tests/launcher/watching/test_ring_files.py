"""What ranks wrote to in memory goes with their attempt: a job that starts again for months must not fill it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robust_run.clock import SystemClock
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.watching import ring_files
from robust_run.launcher.agent.workers.environment import RankPlace
from robust_run.launcher.agent.workers.starter import StartPlan
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std
from robust_run.launcher.records.run_directory import RunDirectory

SPEC = JobSpec(
    argv=("python", "train.py"),
    script="train.py",
    is_python=True,
    nproc=2,
    run_id="r",
    rdzv_id="r",
    log_dir="/tmp",
    streams=OutputStreams(redirects=(Std(), Std()), tee=(Std(), Std()), shown=(True, True)),
    preload=("torch",),
)


class NoStarter:
    """Starts no process."""

    is_behind = False

    def start(self, attempt: int, plans: list[StartPlan]) -> tuple[list[Any], list[Any]]:
        return [], []

    def is_outdated(self) -> bool:
        return False


def test_of_attempts_that_are_over_hardly_anything_is_left_in_memory(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    folders = RunDirectory(str(tmp_path / "run"), str(memory))
    router = SimpleNamespace(open_rank=lambda *_: SimpleNamespace(close=lambda: None), say=lambda _: None)
    node = Node(SPEC, {}, SystemClock(), folders, router, lambda *_: None, lambda _: None, ())  # type: ignore[arg-type]
    node.starter = NoStarter()  # type: ignore[assignment]
    left = []
    for attempt in range(6):
        node.start_workers(RankPlace(attempt=attempt, address="127.0.0.1", port=1, world_size=2))
        assert {f"attempt_{attempt}-0.steps", f"attempt_{attempt}-1.steps.ring"} <= set(os.listdir(memory))
        ring_files.forget(folders, attempt, (0, 1))
        left.append(sorted(os.listdir(memory)))
    assert left[-1] == ["attempt_5-0.steps.modules", "attempt_5-reports"], (
        "what the newest said last is read after its end"
    )
    assert len({len(each) for each in left}) == 1, "none adds to what those before have left"
