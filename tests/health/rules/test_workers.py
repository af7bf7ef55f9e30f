"""How a worker that ended becomes an event of the rules."""

from __future__ import annotations

import pytest

from robust_run.health.rules.book import load
from robust_run.health.rules.deciding import decide
from robust_run.health.rules.workers import PERHAPS, event_of
from robust_run.health.sensors.types import Event
from robust_run.health.types import Finding

ECC = Finding(kind="accelerator", line="CUDA error: uncorrectable ECC error", trouble="ecc")
OLD = Finding(kind="exception", line="ValueError: x")


def kill(number: int = 0, at_s: float = 100.0) -> Event:
    return Event(name="memory.oom_kill", kind="alert", subject="", detail="killed", at_s=at_s, number=number)


def test_what_a_worker_said_is_an_event_of_that_trouble_with_the_line_that_decided() -> None:
    event = event_of(3, 77, 1, ECC, (), 100.0)
    assert event is not None
    assert (event.name, event.subject, event.detail) == ("worker.ecc", "rank 3", ECC.line)
    _, decision = decide(load(""), {}, "n1", event, 0.0)
    assert decision is not None
    assert (decision.rung, decision.rule) == ("evict", "worker.ecc")


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_a_worker_that_the_kernel_killed_for_memory_is_known_by_its_pid(exit_code: int) -> None:
    event = event_of(3, 77, exit_code, None, (kill(12), kill(77, at_s=50.0)), 100.0)
    assert event is not None
    assert event.name == "worker.host_memory"


def test_without_a_pid_the_time_tells() -> None:
    near, far = (
        event_of(3, 77, -9, None, (kill(at_s=97.0),), 100.0),
        event_of(3, 77, -9, None, (kill(at_s=90.0),), 100.0),
    )
    assert near is not None
    assert near.name == "worker.host_memory"
    assert far is None


def test_a_kill_that_was_counted_earlier_is_only_perhaps_this_worker_s() -> None:
    earlier = event_of(3, 77, -9, None, (kill(at_s=97.5),), 100.0)
    at_once = event_of(3, 77, -9, None, (kill(at_s=97.5), kill(at_s=99.9)), 100.0)
    assert earlier is not None and earlier.detail.startswith(PERHAPS) and "2.5 s before" in earlier.detail
    assert at_once is not None and not at_once.detail.startswith(PERHAPS)


def test_another_process_s_death_explains_nothing() -> None:
    assert event_of(3, 77, -9, None, (kill(12),), 100.0) is None


def test_a_worker_that_did_not_die_of_sigkill_was_not_killed_for_memory() -> None:
    event = event_of(3, 77, 1, ECC, (kill(77),), 100.0)
    assert event is not None
    assert event.name == "worker.ecc"


def test_a_worker_that_said_nothing_or_nothing_known_is_no_event() -> None:
    assert event_of(3, 77, 1, None, (), 100.0) is None
    assert event_of(3, 77, 1, OLD, (), 100.0) is None
