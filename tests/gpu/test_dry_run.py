"""The tests on a GPU need one; that their program and their ground work is tested here without, over gloo."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import Ranks, TooLongError, until
from gpu.job import healed

from robust_run.tracer.flight.types import GroupClock
from robust_run.tracer.sight import flight_recorder
from robust_run.tracer.sight.flight_recorder import counted

BENCH = Path(__file__).parents[2] / "bench"

pytestmark = pytest.mark.timeout(600)


def test_a_training_ends_with_the_same_weights_on_all_ranks_and_a_slow_one_slows_all(tmp_path: Path):
    timed = {"ROBUST_TRACE_PHASES": "host"}
    with Ranks(tmp_path, "gloo", steps=5, fault=("slow", "0", "4"), armed=True, environment=timed) as ranks:
        digests = ranks.until_done()
        assert ranks.steps() == [5, 5]
        times = ranks.step_times(1)
        phases = [ranks.phases(rank) for rank in range(2)]
    assert len(set(digests)) == 1
    assert len(digests[0]) == 64
    # Rank 0 began its step 4 when rank 1 was in its step 3 at the earliest; single steps of rank 1 may be shorter.
    assert sum(times[2:]) >= 2 * 0.3 - 0.01
    assert [[one.step for one in rank] for rank in phases] == [[2, 3, 4, 5]] * 2
    assert [one.forward_ms >= 300.0 for one in phases[0][2:]] == [True, True]
    assert all(one.backward_ms > 0.0 and one.backward_waiting_ms > 0.0 for rank in phases for one in rank)


def test_a_late_rank_holds_the_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flight_recorder, "PATIENT_S", 60.0)
    with Ranks(tmp_path, "gloo", fault=("late", "1", "4"), environment={"SERVE": str(tmp_path / "s")}) as ranks:
        ranks.until_steps(3)
        ranks.until_stuck()
        assert ranks.steps() == [3, 3]
        waits, (name,) = asyncio.run(counted(str(tmp_path / "s-0"), "gloo_whole"))
        late: list[GroupClock] = []

        def has_come() -> bool:  # gloo's threads note the end of a call a moment later, or (seen twice in months) never
            late[:] = asyncio.run(counted(str(tmp_path / "s-1"), "gloo_whole"))[0]
            return bool(late) and late[0].enqueued - late[0].completed <= 2

        until(has_come, lambda: f"torch's recorder of the late rank: {late}")
    assert name.name == "0"
    assert waits[0].is_open and waits[0].enqueued > late[0].enqueued >= 3, "torch's own recorder knows who has come"


def test_a_starved_rank_still_trains_and_a_stopped_one_holds_the_other_up(tmp_path: Path):
    with Ranks(tmp_path, "gloo") as ranks:
        ranks.until_steps(2)
        burning = ranks.starve(1, min(os.sched_getaffinity(0)))
        try:
            ranks.until_steps(ranks.steps()[1] + 2)
        finally:
            for each in burning:
                each.send_signal(signal.SIGKILL)
                each.wait(60)
        ranks.stop(1)
        ranks.until_stuck()
        assert max(ranks.steps()) - min(ranks.steps()) <= 1
        assert [sight.trace for sight in ranks.sights()] == [None, None], "gloo is not NCCL"
        pids = [ranks.pid(rank) for rank in range(2)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_that_dies_is_told_with_its_last_words(tmp_path: Path):
    died = pytest.raises(TooLongError, match=r"a rank has died: .*ValueError")
    with Ranks(tmp_path, "gloo", environment={"WORLD_SIZE": "many"}) as ranks, died:
        ranks.until_steps(1)


def test_a_wait_ends():
    with pytest.raises(TooLongError, match=r"not within 0\.1 s: the moon"):
        until(lambda: False, lambda: "the moon", 0.1)


def test_why_there_is_nothing_to_test_with_is_said_in_words():
    reason = machine.why_not()
    assert not reason or "GPU" in reason or "CUDA" in reason or "NCCL" in reason
    assert "torch" in machine.versions()


def test_the_bench_measures_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCH))
    nccl_gpu = importlib.import_module("nccl_gpu")
    off = nccl_gpu.measure_side(tmp_path, nccl_gpu.OFF, "", 2, backend="gloo")
    assert off.step_s > 0
    traced = nccl_gpu.Measured(step_s=off.step_s * 1.5, operations=8.0, bytes=2000.0)
    today = date.today()
    page = nccl_gpu.document({nccl_gpu.OFF: [off], nccl_gpu.ON: [traced]}, 1, 2)
    assert "| traced | " in page
    assert "+50.00% | 8.0 | 2,000 |" in page
    assert today.isoformat() in page or date.today().isoformat() in page, "it may be midnight"


def test_a_job_that_loses_a_rank_is_relaunched_from_its_warm_process(tmp_path: Path):
    found = healed(tmp_path, "gloo", {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, signal.SIGKILL)
    assert (found.rungs[0], len(found.rungs), len(found.sums)) == ("spawn", 2, 4)
    assert found.began_with_cuda == [False] * 4
    assert len(set(found.sums)) == 1


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_all_that_a_gpu_shows_says_in_one_line_that_there_is_none(tmp_path: Path):
    page = tmp_path / "page.md"
    argv = [sys.executable, str(BENCH / "on_gpu.py"), "--page", str(page)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == "gpu: nothing is measured: there is no NVIDIA GPU here (/dev/nvidiactl)\n", done.stderr
    assert not page.exists()


def test_all_that_a_gpu_shows_keeps_what_each_part_said_also_where_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(BENCH))
    on_gpu = importlib.import_module("on_gpu")
    parts = on_gpu.parts_of(on_gpu.wrappers(tmp_path))
    assert sum(part.limit_s for part in parts) <= 24 * 60, "25 minutes in all"
    outcomes = [
        on_gpu.run(on_gpu.Part("good", ("-c", "print('a line'); print('{\"ratio\": 0.5}')"), 60.0)),
        on_gpu.run(on_gpu.Part("bad", ("-c", "raise SystemExit('no such thing')"), 60.0)),
        on_gpu.run(on_gpu.Part("slow", ("-c", "import time; time.sleep(600)"), 1.0)),
    ]
    assert [(each.trouble, each.lines[-1]) for each in outcomes] == [
        ("", "a line"),
        ("ended with 1", "no such thing"),
        ("took longer than 1 s", "KeyboardInterrupt"),
    ], "one that takes too long is asked to end, and may say how far it came"
    assert outcomes[0].result == {"ratio": 0.5}
    page = on_gpu.page(outcomes, {"torch": "2.11"}, date(2026, 1, 2))
    assert "2026-01-02: torch 2.11." in page and "| bad | ended with 1 | " in page and "    no such thing" in page
