"""A job of several roles near its time limit: when workers are warned, and when it is told to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm.limit import SHUTDOWN_S, TimeLimit
from robust_run.slurm.requeue import read_warning
from robust_run.slurm.rules.types import SlurmJobFacts
from robust_run.slurm.scontrol import Answer

SAID = Answer(ok=True, text="")
MISSING = Answer(ok=False, text="", is_missing=True)


class StubLoop:
    """Keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Any]] = []

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> StubLoop:
        self.later.append((delay_s, (call, arguments)))
        return self

    def cancel(self) -> None:
        self.later.clear()


class Node:
    """One node of a job. `leads`: it ends the job."""

    def __init__(self, folder: Path, *, leads: bool = True, **use: Any) -> None:
        self.loop, self.said, self.ended = StubLoop(), list[str](), 0
        known = {"job": "7", "step": "0", "node_id": 0 if leads else 1, "node_name": "rr1", **use}
        end = self.end if leads else None
        self.limit = TimeLimit(SlurmUse(**known), str(folder), {}, self.said.append, end, cast("Any", self.loop))
        self.loop.cancel()

    def end(self) -> None:
        self.ended += 1

    @property
    def warned(self) -> Any:
        return read_warning(self.limit.path)


def facts(left_s: float | None, **more: Any) -> SlurmJobFacts:
    end_unix_s = time.time() + left_s if left_s is not None else None
    return SlurmJobFacts(**{"state": "RUNNING", "is_batch": True, "end_unix_s": end_unix_s, **more})


def test_workers_are_warned_and_the_job_ends_while_it_can_be_requeued(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.limit._near(facts(100.0), SAID)
    assert (node.warned.reason, node.ended) == ("time_limit", 0)
    assert node.warned.deadline <= time.time() + 100.0 - SHUTDOWN_S
    assert "it is ended and requeued" in node.said[0]
    assert len(node.loop.later) == 1
    node.limit._deadline(facts(45.0), SAID)
    assert node.ended == 1


@pytest.mark.parametrize("left_s", [1000.0, None])
def test_a_limit_that_was_moved_warns_nobody(tmp_path: Path, left_s: float | None) -> None:
    node, said = Node(tmp_path), facts(left_s)
    node.limit._near(said, SAID)
    assert node.warned is None
    node.limit._limit(facts(100.0), time.time() + 100.0, "")
    node.limit._deadline(said, SAID)
    assert (node.warned, node.ended) == (None, 0)
    assert node.said[-1] == "the time limit was moved, the job goes on"


@pytest.mark.parametrize("more", [{"is_batch": False}, {"may_requeue": False}])
def test_a_job_that_cannot_be_requeued_works_to_its_limit(tmp_path: Path, more: dict[str, bool]) -> None:
    node = Node(tmp_path)
    node.limit._near(facts(100.0, **more), SAID)
    assert node.warned.reason == "time_limit"
    assert node.warned.deadline > time.time() + 90.0
    assert node.loop.later == []
    never = Node(tmp_path / "never", requeue="never")
    (tmp_path / "never").mkdir()
    never.limit._near(facts(100.0), SAID)
    assert never.loop.later == []


def test_a_node_that_does_not_lead_warns_its_workers_and_ends_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, leads=False)
    node.limit._near(facts(100.0), SAID)
    assert node.warned.reason == "time_limit"
    assert (node.said, node.loop.later) == ([], [])


def test_an_end_that_is_over_is_no_limit(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for state in ("COMPLETING", "CANCELLED by 0", "PREEMPTED"):
        node.limit._learn(facts(-1.0, state=state), SAID)
        node.limit._near(facts(-1.0, state=state), SAID)
        node.limit._deadline(facts(-1.0, state=state), SAID)
    assert (node.warned, node.ended, node.loop.later) == (None, 0, [])


def test_a_signal_far_from_the_limit_only_warns(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.limit._warned_by("SIGUSR1", facts(7200.0))
    assert (node.warned.reason, node.warned.signal) == ("warned", "SIGUSR1")
    assert node.loop.later == []
    node.limit._warned_by("SIGUSR1", facts(300.0))
    assert node.warned.reason == "time_limit"


def test_without_scontrol_the_limit_is_what_the_environment_said(tmp_path: Path) -> None:
    node = Node(tmp_path, end_unix_s=time.time() + 1000.0)
    node.limit._learn(None, MISSING)
    assert node.loop.later
    silent = Node(tmp_path)
    silent.limit._learn(None, MISSING)
    assert "no scontrol" in silent.said[0]
    assert silent.loop.later == []
    busy = Node(tmp_path)
    busy.limit._learn(None, Answer(ok=False, text="timeout"))
    assert len(busy.loop.later) == 1, "it is asked again"


def test_while_slurm_does_not_answer_it_is_asked_again_whether_the_job_is_requeued(tmp_path: Path) -> None:
    node = Node(tmp_path, end_unix_s=time.time() + 50.0)
    node.limit._near(None, Answer(ok=False, text="timeout"))
    assert "Slurm ends it" in node.said[0]
    assert len(node.loop.later) == 1
    node.limit._near(facts(50.0), SAID)
    assert node.warned.deadline < time.time() + 50.0 - SHUTDOWN_S + 1.0


def test_a_warning_by_a_clock_that_was_wrong_is_taken_back_when_slurm_answers(tmp_path: Path) -> None:
    node = Node(tmp_path, end_unix_s=time.time() - 1.0)
    node.limit._near(None, Answer(ok=False, text="Expired credential"))
    node.limit._near(facts(7200.0), SAID)
    assert (node.warned, node.said[-1]) == (None, "the time limit was moved, the job goes on")
