"""torch's flight recorder of a real NCCL, as an agent looks at it: two ranks on one GPU (see `ground`); one does not come.

Best effort, as `test_nccl` is.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import Ranks, TooLongError

from robust_run.tracer.flight.progress import Progress
from robust_run.tracer.sight.flight_recorder import counted, recorded

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)


def test_who_is_behind_is_told_by_the_recorder_while_no_rank_waits_in_a_call(tmp_path: Path) -> None:
    files = [str(tmp_path / f"s-{rank}") for rank in range(2)]
    watched = [Progress(), Progress()]
    try:
        with Ranks(
            tmp_path / "ranks", "nccl", fault=("late", "1", "8"), environment={"SERVE": str(tmp_path / "s")}
        ) as ranks:
            ranks.until_steps(7)
            ranks.until_stuck()
            for file, progress in zip(files, watched, strict=True):
                progress.learn(asyncio.run(counted(file, "nccl_whole"))[1])
            for _ in range(4):
                for file, progress in zip(files, watched, strict=True):
                    clocks, names = asyncio.run(counted(file, "nccl"))
                    assert names == (), "counts alone"
                    progress.take(clocks, time.monotonic(), 7, on_nccl=True)
                time.sleep(1.0)
            seen = [asyncio.run(recorded(file, time.monotonic, time.time)) for file in files]
    except TooLongError as error:
        pytest.skip(f"two ranks of NCCL do not train on one GPU here: {error}")
    now_s = time.monotonic()
    since_s = watched[0].waiting_since_s(7, 0.0, now_s, 60.0)
    assert since_s is not None and now_s - since_s >= 2.0, "its work stands"
    assert watched[1].waiting_since_s(7, 0.0, now_s, 60.0) is None, "it has nothing under way"
    newest = [max(op.seq for op in ops) for ops in seen]
    assert newest[0] > newest[1] > 0
    assert [group.name for group in watched[0].sight().groups] == ["0"]  # type: ignore[union-attr]
