"""Whether a rank goes on after its wait, or the wait ended in an error: by what its ring says from look to look."""

from __future__ import annotations

import pytest

from robust_run.launcher.agent.watching.ended_waits import EndedWaits
from robust_run.tracer.files.ring import RingHeader


class Ring:
    """Call 6 has failed, call 7 has not."""

    def has_failed(self, index: int) -> bool:
        return index == 6


def header(since_s: float | None = None, *, index: int | None = 6, ops: int = 7, steps: int = 2) -> RingHeader:
    waiting = index if since_s is not None else None
    return RingHeader(
        pid=9, rank=0, world_size=2, ops=ops, steps=steps, last_at_s=1.0, blocked_s=0.0, waiting_since_s=since_s,
        waiting_index=waiting, events=5, given_up=False,
    )  # fmt: skip


def after(*headers: RingHeader) -> set[int]:
    waits = EndedWaits()
    for each in headers:
        waits.look(0, each, Ring())
    return waits.failed


def test_a_wait_that_ended_in_an_error_is_known_until_the_rank_does_something() -> None:
    assert after(header(3.0)) == set(), "it waits"
    assert after(header(3.0), header(), header()) == {0}
    assert after(header(3.0), header(), header(ops=8)) == set(), "it has made another call"
    assert after(header(3.0), header(), header(steps=3)) == set(), "it has made a step"
    assert after(header(3.0), header(), header(9.0, index=7, ops=8)) == set(), "it waits again"


def test_a_wait_that_ended_well_is_none() -> None:
    assert after(header(3.0, index=7), header()) == set()
    assert after(header()) == set(), "it has not waited"


def test_of_a_wait_that_is_not_recorded_nothing_is_known() -> None:
    assert after(header(3.0, index=None), header()) == set()


@pytest.mark.parametrize(("exit_code", "failed"), [(1, {0}), (-9, {0}), (0, set())])
def test_who_ends_while_it_waits_did_not_come_through_unless_it_ended_well(exit_code: int, failed: set[int]) -> None:
    waits = EndedWaits()
    waits.look(0, header(3.0), Ring())
    waits.ended(0, exit_code)
    assert waits.failed == failed


def test_who_came_through_and_ended_later_is_none() -> None:
    waits = EndedWaits()
    waits.look(0, header(3.0, index=7), Ring())
    waits.look(0, header(), Ring())
    waits.ended(0, 1)
    assert waits.failed == set()
