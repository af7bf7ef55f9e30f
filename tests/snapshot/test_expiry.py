"""Age and pruning, as tables."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot.made import manifest_of

from robust_run.snapshot.rules import expiry
from robust_run.snapshot.rules.expiry import StoredFolder

DAY_S = 86400.0
NOW_S = 1_790_000_000.0


@pytest.mark.parametrize(
    ("days", "pinned", "state"),
    [
        (0, False, "fresh"),
        (6, False, "fresh"),
        (9, False, "old"),
        (31, False, "expired"),
        (900, True, "fresh"),
        (-5, False, "fresh"),
    ],
)
def test_only_what_was_resolved_grows_old(days: int, pinned: bool, state: str) -> None:
    found = expiry.age(manifest_of(pinned=pinned), NOW_S + days * DAY_S)
    assert found.state == state
    if state == "old":
        assert found.words == "resolved 9 days ago; --refresh-setup resolves again"


def stored(key: str, built_days: float | None, touched_days: float) -> StoredFolder:
    built = None if built_days is None else NOW_S - built_days * DAY_S
    return StoredFolder(key=key, built_unix_s=built, touched_unix_s=NOW_S - touched_days * DAY_S, size_bytes=1)


@pytest.mark.parametrize(
    ("what", "given_up", "minutes", "reason"),
    [
        ("a builder that is slow, stopped or cut off says nothing for an hour", False, 90, ""),
        ("nor for most of a day", False, 23 * 60, ""),
        ("it was killed", False, 25 * 60, "its build was given up 1 day ago"),
        ("it failed just now: those who wait have not read why", True, 0, ""),
        ("a node that waits is starved of its CPU", True, 59, ""),
        ("a clock is ahead of the store's", True, -90, ""),
        ("the store does not say when", True, float("-inf"), ""),
        ("it failed, and who waited has read it or goes on alone", True, 125, "its set-up failed 2 hours ago"),
    ],
)
def test_what_a_build_without_a_snapshot_left_goes_when_nobody_needs_it(
    what: str, given_up: bool, minutes: float, reason: str
) -> None:
    left = msgspec.structs.replace(stored(what, None, minutes / 1440), given_up=given_up)
    assert [item.reason for item in expiry.prune_plan([left], NOW_S, unused_s=30 * DAY_S)] == [reason] * bool(reason)


def test_what_is_pruned_and_why() -> None:
    found = expiry.prune_plan(
        [
            stored("used", 90, 1),
            stored("unused", 90, 40),
            stored("kept", 80, 40),
            stored("building", None, 0.1),
            stored("abandoned", None, 3),
            stored("latest", 35, 35),
        ],
        NOW_S,
        unused_s=30 * DAY_S,
        keep_latest=1,
        keep_keys=["kept"],
    )
    assert [(item.key, item.reason) for item in found] == [
        ("abandoned", "its build was given up 3 days ago"),
        ("unused", "not used for 40 days"),
    ]


@given(st.lists(st.tuples(st.floats(0, 400) | st.none(), st.floats(0, 400)), max_size=20), st.integers(0, 5))
def test_the_latest_always_stay_and_what_goes_was_unused(
    ages: list[tuple[float | None, float]], keep_latest: int
) -> None:
    everything = [stored(str(number), built, touched) for number, (built, touched) in enumerate(ages)]
    gone = {item.key for item in expiry.prune_plan(everything, NOW_S, unused_s=30 * DAY_S, keep_latest=keep_latest)}
    whole = sum(item.built_unix_s is not None for item in everything)
    kept = sum(item.built_unix_s is not None and item.key not in gone for item in everything)
    assert kept >= min(keep_latest, whole)
    assert all(NOW_S - item.touched_unix_s > DAY_S for item in everything if item.key in gone)
