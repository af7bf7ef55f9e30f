"""Who may fetch how much of what a node fetches at a job's start, and the line that says it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.store import turn_table
from robust_run.store.rules import turns
from robust_run.store.rules.turns import LEAST, STALE_S, Fetching, Urgency, allowed, line
from robust_run.store.turn_table import CHECKPOINT, IMAGE, SET_UP, TurnTable

NOW_S = 1000.0


@pytest.fixture(autouse=True)
def of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process has one table, in which tests before these may have said what they fetch."""
    made: dict[int, int] = {}
    monkeypatch.setattr(turn_table, "_ours", made)
    yield
    for descriptor in made.values():
        os.close(descriptor)


def fetching(name: str, urgency: Urgency, **more: object) -> Fetching:
    return Fetching(name=name, urgency=urgency, **{"seen_s": NOW_S, **more})  # type: ignore[arg-type]


HOT = fetching(IMAGE, Urgency.HOT)
REST = fetching(IMAGE, Urgency.REST)
AHEAD = fetching(CHECKPOINT, Urgency.CHECKPOINT)
INSTALLED = fetching(SET_UP, Urgency.SET_UP)


def test_alone_it_has_the_whole_width() -> None:
    assert allowed(CHECKPOINT, 16, [AHEAD], NOW_S) == 16
    assert allowed(CHECKPOINT, 16, [], NOW_S) == 16, "nor does it wait before it has said anything"


def test_what_is_needed_sooner_goes_first() -> None:
    assert allowed(CHECKPOINT, 16, [HOT, AHEAD], NOW_S) == LEAST
    assert allowed(IMAGE, 32, [HOT, AHEAD], NOW_S) == 32
    assert allowed(IMAGE, 32, [HOT, INSTALLED, AHEAD], NOW_S) == LEAST
    assert allowed(CHECKPOINT, 16, [REST, AHEAD], NOW_S) == 16, "the rest of the image comes after it"
    assert allowed(IMAGE, 32, [REST, AHEAD], NOW_S) == LEAST


def test_what_a_reader_waits_for_goes_before_all_else() -> None:
    demanded = fetching(CHECKPOINT, Urgency.CHECKPOINT, is_waited_for=True)
    assert allowed(CHECKPOINT, 16, [HOT, INSTALLED, demanded], NOW_S) == 16
    assert allowed(IMAGE, 32, [HOT, demanded], NOW_S) == LEAST
    both = [fetching(IMAGE, Urgency.HOT, is_waited_for=True), demanded]
    assert [allowed(IMAGE, 32, both, NOW_S), allowed(CHECKPOINT, 16, both, NOW_S)] == [32, 16]


def test_who_is_done_or_silent_is_not_waited_for() -> None:
    done = fetching(IMAGE, Urgency.HOT, is_over=True)
    silent = fetching(IMAGE, Urgency.HOT, seen_s=NOW_S - STALE_S)
    assert allowed(CHECKPOINT, 16, [done, AHEAD], NOW_S) == 16
    assert allowed(CHECKPOINT, 16, [silent, AHEAD], NOW_S) == 16


@given(
    st.lists(
        st.builds(
            fetching,
            st.sampled_from([IMAGE, SET_UP, CHECKPOINT]),
            st.sampled_from(Urgency),
            is_waited_for=st.booleans(),
            is_over=st.booleans(),
            seen_s=st.sampled_from([NOW_S, NOW_S - 10]),
        ),
        unique_by=lambda each: each.name,
    )
)
def test_nobody_is_stopped_and_somebody_goes_at_full_width(all_of_them: list[Fetching]) -> None:
    given_out = [allowed(each.name, 16, all_of_them, NOW_S) for each in turns.are_fetching(all_of_them, NOW_S)]
    assert all(LEAST <= each <= 16 for each in given_out)
    assert not given_out or 16 in given_out


def test_the_line_says_bytes_rate_and_what_is_waited_for() -> None:
    before = {CHECKPOINT: fetching(CHECKPOINT, Urgency.CHECKPOINT, seen_s=NOW_S - 2, done_bytes=200_000_000)}
    now = [
        fetching(
            CHECKPOINT,
            Urgency.CHECKPOINT,
            done_bytes=800_000_000,
            total_bytes=1_700_000_000,
            is_waited_for=True,
        ),
        fetching(IMAGE, Urgency.HOT, done_bytes=5_000_000),
        fetching(SET_UP, Urgency.SET_UP, is_over=True),
    ]
    assert line(now, before, NOW_S) == (
        "fetching: checkpoint 800 MB of 1.7 GB (300 MB/s, 3 s left, waited for); image 5 MB"
    )
    assert line([], before, NOW_S) == ""
    assert line([fetching(IMAGE, Urgency.REST)], {}, NOW_S) == "", "all of the image is here"


def test_what_one_says_the_others_see(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    place = turn_table.begin(env)
    assert env == {turn_table.VARIABLE: place} and turn_table.begin({}) == place, "there is one of a process"
    at_s = [5.0]
    one, other = (TurnTable(place, clock=lambda: at_s[0]) for _ in range(2))
    one.say(IMAGE, Urgency.HOT, 3, 10)
    other.say(CHECKPOINT, Urgency.CHECKPOINT, 1, 2, is_waited_for=True)
    assert one.all() == other.all()
    assert [(each.name, each.done_bytes, each.total_bytes, each.is_waited_for) for each in one.all()] == [
        (IMAGE, 3, 10, False),
        (CHECKPOINT, 1, 2, True),
    ]
    assert [one.allowed(IMAGE, 32), other.allowed(CHECKPOINT, 16)] == [LEAST, 16]
    at_s[0] += 10
    assert one.allowed(IMAGE, 32) == 32, "nobody has said anything for long"


def test_the_table_keeps_from_when_to_when_something_came() -> None:
    at_s = [5.0]
    one = TurnTable(turn_table.begin({}), clock=lambda: at_s[0])
    for now_s, done in ((6.0, 100), (7.0, 130), (8.0, 150), (9.0, 150)):
        at_s[0] = now_s
        one.say(turn_table.CODE, Urgency.SET_UP, done, 200, here_before_bytes=100)
    (row,) = [each for each in one.all() if each.name == turn_table.CODE]
    assert (row.began_s, row.moved_s, row.seen_s, row.came_bytes, row.done_bytes) == (6.0, 8.0, 9.0, 50, 150)


def test_what_several_processes_fetch_of_the_same_one_after_another_is_one_row(tmp_path: Path) -> None:
    """A set-up is built in an image, which then another process shows to the workers."""
    place, at_s = tmp_path / "table", [5.0]
    place.write_bytes(bytes(4096))
    for now_s, done, before in ((6.0, 0, 0), (7.0, 80, 0), (8.0, 80, 80), (9.0, 100, 80), (10.0, 100, 100)):
        at_s[0] = now_s
        if before == done:  # one begins: so much is here already
            process = TurnTable(str(place), clock=lambda: at_s[0])
        process.say(IMAGE, Urgency.REST, done, 100, here_before_bytes=before)
    (row,) = process.all()
    assert (row.came_bytes, row.done_bytes, row.began_s, row.moved_s, row.seen_s) == (100, 100, 6.0, 9.0, 10.0)


@pytest.mark.parametrize("place", ["", "/nowhere", "/dev/null", "/proc/self/fd/99999"])
def test_without_a_table_everybody_goes_on_alone(place: str) -> None:
    assert turn_table.opened(place) is None
