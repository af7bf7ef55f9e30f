"""What is done where one of several nodes is at fault: who goes, and what becomes of those that no other can take over for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.ladder.cover import TimeLost, cover

FOUR = ("n14", "n12", "n13", "n15")
NEVER = TimeLost(find_s=None, standbys_s=None, mtbf_s=12 * 3600.0, failure_s=300.0)


def lost(**more: float | None) -> TimeLost:
    return msgspec.structs.replace(NEVER, **more)


@pytest.mark.parametrize(
    ("spare", "allowed", "costs", "evicted", "rest"),
    [
        (4, 4, NEVER, 4, "none"),
        (None, 4, NEVER, 4, "none"),
        (2, 4, NEVER, 2, "in_place"),
        (0, 4, NEVER, 0, "in_place"),
        (4, 1, NEVER, 1, "in_place"),
        (2, 4, lost(standbys_s=10.0), 4, "wait"),
        (2, 4, lost(standbys_s=3600.0), 2, "in_place"),
        (2, 3, lost(standbys_s=10.0), 2, "in_place"),
        (2, 4, lost(mtbf_s=60.0, find_s=600.0), 2, "search"),
        (2, 4, lost(mtbf_s=60.0, find_s=600.0, standbys_s=300.0), 4, "wait"),
        (2, 4, lost(mtbf_s=86400.0, find_s=600.0), 2, "in_place"),
    ],
    ids=[
        "all are covered",
        "any number is",
        "two are",
        "none is",
        "the share allows one",
        "more come at once",
        "more come too late",
        "not all may be evicted, so waiting is of no use",
        "they fail each minute: search",
        "they fail each minute and more come soon",
        "they fail once a day",
    ],
)
def test_the_time_that_is_lost_decides(
    spare: int | None, allowed: int, costs: TimeLost, evicted: int, rest: str
) -> None:
    plan = cover(FOUR, spare, allowed, costs)
    assert (plan.evict, plan.rest) == (FOUR[:evicted], rest)


@given(
    spare=st.integers(0, 6),
    allowed=st.integers(-1, 6),
    costs=st.builds(
        TimeLost,
        find_s=st.none() | st.floats(0, 1e6),
        standbys_s=st.none() | st.floats(0, 1e6),
        mtbf_s=st.floats(0, 1e6),
        failure_s=st.floats(0, 1e6),
    ),
)
def test_no_more_are_evicted_than_allowed_and_the_worst_first(spare: int, allowed: int, costs: TimeLost) -> None:
    plan = cover(FOUR, spare, allowed, costs)
    assert len(plan.evict) <= max(allowed, 0)
    assert plan.evict == FOUR[: len(plan.evict)]
    assert plan.rest == "wait" or len(plan.evict) <= spare
