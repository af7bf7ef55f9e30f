"""Verdicts on a rank whose threads hold each other's locks: proven by three readings, else said as a wait like any other."""

from __future__ import annotations

import msgspec
import pytest
from seen_ranks import STANDARD, stack

from robust_run.tracer.types import RankSight, Scene, TraceVerdict
from robust_run.tracer.verdict import RankPatience, look
from robust_run.tracer.wake.types import WakeReading
from tests.tracer.verdict.test_pairs import ELSEWHERE, rank, waits
from tests.tracer.wake.test_proof import MUTEXES, RLOCKS, later, of_thread, thrice


def stuck(*readings: WakeReading, **more: object) -> RankSight:
    """Return rank 0 with what was read of it, oldest first."""
    return msgspec.structs.replace(rank(0, at=ELSEWHERE), wake=readings[-1], wake_before=readings[:-1], **more)


def verdict_on(culprit: RankSight, *, at_s: float = 20.0, op: str = "all_reduce") -> TraceVerdict | None:
    ranks = (culprit, *(rank(number, waits(op)) for number in (1, 2)))
    return look(Scene(at_s=at_s, attempt=0, world_size=3, ranks=ranks), RankPatience(after_s=5.0)).verdict


@pytest.mark.parametrize("readings", [MUTEXES, RLOCKS])
def test_a_circle_of_locks_is_proven_and_told_with_its_threads(readings: WakeReading) -> None:
    found = verdict_on(stuck(*thrice(readings)))
    assert found is not None
    assert (found.kind, found.rule, found.ranks, found.proven, found.confidence) == (
        "hang", "lock_circle", (0,), True, "high",
    )  # fmt: skip
    assert found.sentence.endswith(
        "nothing can wake it; it is in data.py:88 get, waits for a lock that its thread 101 holds, which waits for a lock "
        "that the main thread holds"
    )
    assert "never joined all_reduce" in found.sentence


def test_a_thread_of_it_that_works_does_not_matter() -> None:
    busy = stuck(*thrice(MUTEXES))
    process = msgspec.structs.replace(busy.processes[0], cpu=1.0, io_bytes=10**8)
    found = verdict_on(msgspec.structs.replace(busy, processes=(process,)))
    assert found is not None and found.proven


def test_fewer_readings_or_a_thread_that_moved_prove_nothing() -> None:
    moved = of_thread(1, switches=1)
    for readings in ((MUTEXES,), thrice(MUTEXES)[:2], (*thrice(MUTEXES)[:2], moved(later(MUTEXES, 2.2)))):
        found = verdict_on(stuck(*readings))
        assert found is not None
        assert (found.rule, found.proven) == ("never_joined", False)
        assert "waits for a lock that its thread 101 holds" in found.sentence


def test_nothing_is_said_of_it_before_others_have_waited_for_long() -> None:
    assert verdict_on(stuck(*thrice(MUTEXES)), at_s=12.0) is None


def test_who_receives_from_anybody_may_get_it_from_another_rank() -> None:
    found = verdict_on(stuck(*thrice(MUTEXES)), op="recv_any")
    assert found is None or not found.proven


SIDE_OF_CIRCLE = msgspec.structs.replace(stack("/app/train.py:9 other", main=False), tid=101)
WATCHDOG = msgspec.structs.replace(SIDE_OF_CIRCLE, tid=102)
TIMER = stack(f"{STANDARD}/threading.py:300 wait", f"{STANDARD}/threading.py:1376 run", main=False)


def test_another_thread_that_may_end_it_by_a_signal_or_start_the_program_anew_makes_it_no_proof() -> None:
    for beside, proven in (
        ((), True),
        ((SIDE_OF_CIRCLE,), True),
        ((SIDE_OF_CIRCLE, TIMER), False),
        ((WATCHDOG,), False),
    ):
        found = verdict_on(
            msgspec.structs.replace(
                rank(0, at=ELSEWHERE, beside=beside), wake=thrice(MUTEXES)[-1], wake_before=tuple(thrice(MUTEXES)[:-1])
            )
        )
        assert found is not None and found.proven is proven, beside
        if beside and proven:
            assert "another thread of rank 0 is in train.py:9 other" in found.evidence
