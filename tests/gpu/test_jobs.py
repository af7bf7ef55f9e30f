"""Whole jobs over a real NCCL, as a user starts them: of each fault the verdict names the rank, and a healthy wait is left alone.

Best effort, as `test_nccl` is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gpu import machine
from gpu.ground import APART
from jobs import Job, running, wait_for

#: Rehearsal over gloo: TEST_GPU_JOBS=cpu.
ON_CPU = os.environ.get("TEST_GPU_JOBS") == "cpu"
REASON = "" if ON_CPU else machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).with_name("faulty_program.py"))
PATIENCE_S = 150.0


def environment(fault: str, **more: str) -> dict[str, str]:
    own = {"CPU": "1", "CUDA_VISIBLE_DEVICES": ""} if ON_CPU else APART
    return {**os.environ, **own, "FAULT": fault, "OMP_NUM_THREADS": "1", **more}


def incidents(job: Job) -> list[dict[str, Any]]:
    found = sorted((job.run_dir / "incidents").glob("[0-9][0-9][0-9][0-9].json"))
    return [json.loads(path.read_text()) for path in found]


def started(folder: Path, fault: str, *options: str, **more: str):
    return running(folder, "--nproc-per-node", "2", *options, PROGRAM, env=environment(fault, **more))


def first_verdict(job: Job) -> dict[str, Any]:
    """Wait for the first incident; print and return its verdict."""
    wait_for(lambda: incidents(job) or job.process.poll() is not None, "an incident", PATIENCE_S)
    assert incidents(job), job.finish() or job.err
    verdict = incidents(job)[0]["verdict"]
    print(json.dumps(incidents(job)[0], indent=1)[:6000])
    return verdict


@pytest.mark.parametrize("fault", ["sleeps", "sleeps_synchronize", "sleeps_stream", "burns"])
def test_the_rank_that_the_gpus_of_others_wait_for_is_named(tmp_path: Path, fault: str) -> None:
    with started(tmp_path, fault, "--on-hang", "report", "--hang-after", "5") as job:
        verdict = first_verdict(job)
        assert verdict["ranks"] == [1], verdict["sentence"]
        assert verdict["kind"] == "hang", verdict["sentence"]
        assert "faulty_program.py" in verdict["sentence"], verdict["sentence"]


def test_a_gpu_that_computes_for_ever_is_named_by_its_rank(tmp_path: Path) -> None:
    with started(tmp_path, "kernel", "--on-hang", "report", "--hang-after", "5") as job:
        verdict = first_verdict(job)
        assert verdict["ranks"] == [1], verdict["sentence"]


def test_unlike_calls_are_told(tmp_path: Path) -> None:
    with started(tmp_path, "other_call", "--on-hang", "report", "--hang-after", "5") as job:
        verdict = first_verdict(job)
        assert verdict["kind"] in ("mismatch", "desync"), verdict["sentence"]
        assert "broadcast" in verdict["sentence"], verdict["sentence"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("assert", "device-side assert"), ("memory", "out of memory"), ("raises", "label 50257")],
)
def test_a_rank_that_fails_is_named_with_its_own_words_and_not_its_peers(
    tmp_path: Path, fault: str, words: str
) -> None:
    with started(tmp_path, fault, "--max-restarts", "1") as job:
        verdict = first_verdict(job)
        assert job.finish(PATIENCE_S) == 0, job.err
        print(job.err[-4000:])
    assert verdict["ranks"] == [1], verdict["sentence"]
    assert words in json.dumps(verdict), verdict


def test_a_wait_of_twelve_seconds_is_said_at_most_and_the_training_ends(tmp_path: Path) -> None:
    with started(tmp_path, "waits_once", "--max-restarts", "0") as job:
        assert job.finish(PATIENCE_S) == 0, job.err
        print(job.err[-4000:])
        assert len(job.events("attempt_started")) == 1
        assert [each["verdict"]["ranks"] for each in incidents(job)] in ([], [[1]])


def test_a_slow_rank_is_told(tmp_path: Path) -> None:
    with started(tmp_path, "slow", "--slow-round", "5", "--hang-after", "5", STEPS="100000") as job:
        verdict = first_verdict(job)
        assert (verdict["kind"], verdict["ranks"]) == ("slow", [1]), verdict["sentence"]


def test_a_healthy_training_is_told_nothing_of(tmp_path: Path) -> None:
    with started(tmp_path, "", "--slow-round", "10", STEPS="600") as job:
        assert job.finish(PATIENCE_S) == 0, job.err
        print(job.err[-4000:])
        assert incidents(job) == [], incidents(job)
