"""Dual-phase replay finds the machine a job fails on, says when it cannot, and never accuses a sound one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.checks import replay
from robust_run.health.checks.replay import Conclusion, Replay, ReplayGroup

Fails = Callable[[ReplayGroup], bool]


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def played(state: Replay, fails: Fails, most_steps: int = 10_000) -> tuple[Replay, Conclusion]:
    for _ in range(most_steps):
        groups = replay.next_groups(state)
        if not groups:
            return state, replay.conclude(state)
        machines = [machine for group in groups for machine in (*group.members, *group.helpers)]
        assert len(machines) == len(set(machines)), "a machine is in two groups at the same time"
        assert all(len((*group.members, *group.helpers)) % state.unit == 0 for group in groups)
        state = replay.record(state, groups, {group.number for group in groups if fails(group)})
    raise AssertionError("the replay does not end")


def always(*bad: int) -> Fails:
    return lambda group: bool({*group.members, *group.helpers} & set(bad))


def test_the_papers_example() -> None:
    state = replay.start(names(24), m=4)
    assert (state.grid.m, state.grid.n) == (4, 6)
    assert state.grid.rows()[3] == (12, 13, 14, 15)
    assert state.grid.columns()[1] == (1, 7, 13, 19)
    _, found = played(state, always(13))
    assert (found.verdict, found.machines) == ("found", ("n13",))
    assert "group 3 of 6" in found.sentence and "1 of 6 across" in found.sentence


def test_the_grid_of_24_machines_is_chosen_as_in_the_paper() -> None:
    assert (replay.grid(24).m, replay.grid(24).n) == (4, 6)


@given(st.integers(2, 300), st.integers(1, 8), st.data())
def test_one_machine_that_always_fails_is_found(count: int, unit: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    state, found = played(replay.start(names(count), unit=unit, passes=2), always(bad))
    if state.untested or len(state.grid.rows()) < 2:
        assert found.verdict != "found" or found.machines == (f"n{bad}",)
    else:
        assert (found.verdict, found.machines) == ("found", (f"n{bad}",))


@given(st.integers(4, 120), st.integers(1, 4), st.sampled_from([0.1, 0.5, 0.9]), st.data())
def test_a_sound_machine_is_never_named_for_one_that_fails_now_and_then(
    count: int, unit: int, probability: float, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, count - 1))
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    state, found = played(
        replay.start(names(count), unit=unit, passes=3),
        lambda group: bad in (*group.members, *group.helpers) and chance.random() < probability,
    )
    helped = any(len(members) % unit for members in (*state.grid.rows(), *state.grid.columns())) or unit > 1
    if found.verdict == "found" and not helped:
        assert found.machines == (f"n{bad}",)
    if found.verdict == "ambiguous" and not helped:
        assert f"n{bad}" in found.candidates


@given(st.integers(9, 100), st.data())
def test_of_several_that_always_fail_all_are_found(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=3))
    state, found = played(replay.start(names(count), passes=1), always(*bad))
    if len({machine // state.grid.m for machine in bad}) < len(state.grid.rows()):
        assert found.verdict == "found"
        assert set(found.machines) == {f"n{machine}" for machine in bad}


def test_a_fault_that_never_shows_is_not_reproduced_and_it_is_said_what_that_excludes() -> None:
    _, found = played(replay.start(names(24), passes=5), lambda group: False)
    assert (found.verdict, found.machines, found.candidates) == ("not_reproduced", (), ())
    assert "45%" in found.sentence


def test_what_fails_everywhere_is_no_machines_fault() -> None:
    _, found = played(replay.start(names(24)), lambda group: True)
    assert (found.verdict, found.machines) == ("everywhere", ())


def test_a_machine_that_the_second_phase_missed_is_found_apart_from_others() -> None:
    _, found = played(replay.start(names(24)), lambda group: group.phase != "columns" and 13 in group.members)
    assert (found.verdict, found.machines) == ("found", ("n13",))
    assert "apart" in found.sentence


def test_what_fails_only_once_stays_ambiguous() -> None:
    _, found = played(replay.start(names(24)), lambda group: group.phase == "rows" and 13 in group.members)
    assert found.verdict == "ambiguous"
    assert found.candidates == ("n12", "n13", "n14", "n15")


def test_rows_longer_than_there_are_columns_leave_candidates_that_are_then_run_apart() -> None:
    state = replay.start(names(12), unit=4, m=4)
    assert state.grid.m > state.grid.n, "rows and columns meet in more than one machine"
    _, found = played(state, always(5))
    assert (found.verdict, found.machines) == ("found", ("n5",))


def test_a_group_that_failed_does_not_run_again() -> None:
    state = replay.start(names(4), passes=5)
    first = replay.next_groups(state)
    state = replay.record(state, first, {0})
    assert [group.number for group in replay.next_groups(state)] == [1]


@pytest.mark.parametrize(("count", "unit", "m"), [(0, 1, None), (4, 0, None), (4, 1, 0), (8, 4, 2)])
def test_numbers_that_make_no_grid_are_refused(count: int, unit: int, m: int | None) -> None:
    with pytest.raises(ValueError, match="no grid"):
        replay.grid(count, unit, m)


def test_names_must_differ() -> None:
    with pytest.raises(ValueError, match="no replay of 2 machines"):
        replay.start(["a", "a"])
