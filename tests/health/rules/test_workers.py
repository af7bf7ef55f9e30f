"""How a worker that ended becomes an event of the rules."""

from __future__ import annotations

from typing import Any

import pytest

from robust_run.health.rules.book import load
from robust_run.health.rules.deciding import decide
from robust_run.health.rules.workers import PERHAPS, event_of
from robust_run.health.sensors.types import Event
from robust_run.health.types import Finding

ECC = Finding(kind="accelerator", line="CUDA error: uncorrectable ECC error", trouble="ecc")
OLD = Finding(kind="exception", line="ValueError: x")


def kill(number: int = 0, at_s: float = 100.0, name: str = "memory.oom_kill", **more: Any) -> Event:
    return Event(name=name, subject="", detail="killed", at_s=at_s, number=number, **{"kind": "alert", **more})


def another_s(number: int, at_s: float = 100.0) -> Event:
    """The kernel's log names a process that is not the job's."""
    return kill(number, at_s, kind="note")


def in_shared_cgroup(count: int = 1, at_s: float = 100.0) -> Event:
    return kill(0, at_s, "memory.oom_kill_in_cgroup", value=float(count))


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


def test_a_kill_that_is_known_to_be_another_process_s_is_not_counted_again() -> None:
    """The cgroup counts one kill, and the kernel's log says whose it was: somebody else ended the worker."""
    assert event_of(3, 77, -9, None, (kill(12), kill()), 100.0) is None
    assert event_of(3, 77, -9, None, (another_s(4811), kill()), 100.0) is None
    both = event_of(3, 77, -9, None, (another_s(4811), kill(value=2.0)), 100.0)
    assert both is not None and both.name == "worker.host_memory", "two were killed, and one is named"


def test_in_a_cgroup_that_others_are_in_a_kill_is_only_perhaps_this_worker_s() -> None:
    event = event_of(3, 77, -9, None, (in_shared_cgroup(),), 100.0)
    assert event is not None
    assert event.detail.startswith(PERHAPS)
    assert event.detail.endswith("or a process sent the signal")
    assert event_of(3, 77, -9, None, (in_shared_cgroup(), another_s(4811)), 100.0) is None
    assert event_of(3, 77, -9, None, (in_shared_cgroup(at_s=90.0),), 100.0) is None


def test_a_kill_on_the_node_explains_nothing() -> None:
    assert event_of(3, 77, -9, None, (kill(0, 100.0, "memory.oom_kill_on_node"), another_s(4811)), 100.0) is None


def test_a_worker_that_did_not_die_of_sigkill_was_not_killed_for_memory() -> None:
    event = event_of(3, 77, 1, ECC, (kill(77),), 100.0)
    assert event is not None
    assert event.name == "worker.ecc"


def test_a_worker_that_said_nothing_or_nothing_known_is_no_event() -> None:
    assert event_of(3, 77, 1, None, (), 100.0) is None
    assert event_of(3, 77, 1, OLD, (), 100.0) is None
