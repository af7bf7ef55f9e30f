"""Power cuts under checkpoints in memory: how schedules are drawn and judged, and a fixed small sample of `make soak-memory`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hosts import need_hosts
from memory_cuts import ACTS, MOST, NODES, RANKS, SPARE, STEP_S, Cut, Followed, Schedule, drawn, judge, victims
from memory_cuts_job import EVERY, try_out, undisturbed

pytestmark = pytest.mark.timeout(600)  # two losses, one after the other, on a busy machine

SOME = [drawn(random.Random(seed)) for seed in range(300)]
FOUR = ["a", "b", "c", "d"]
AROUND = {"a": "c", "c": "a", "b": "d", "d": "b"}


@pytest.mark.parametrize(
    "schedule",
    [Schedule(4, (Cut("pair", 1, 6, 0.6), Cut("apart", 3, 5, 0.1)))],  # others: make soak-memory
    ids=lambda schedule: schedule.name,
)
def test_a_step_is_made_again_where_a_copy_is_left_and_storage_is_gone_back_to_where_none_is(
    schedule: Schedule, tmp_path: Path
) -> None:
    need_hosts()
    followed: dict[str, Followed] = {}
    # Standbys are not checked here, as they are in the soak: that takes longer than all else.
    assert try_out(schedule, tmp_path, lambda cut, came: followed.update({cut.act: came}), admission=False) == ""
    assert set(followed) == {cut.act for cut in schedule.cuts}
    sources = {"kill": "memory", "power": "peer", "apart": "peer", "pair": "storage"}
    for act, came in followed.items():
        assert came.source == sources[act] or not came.is_calm, (act, came)
    assert "pair" not in followed or followed["pair"].began % EVERY == 0


def test_a_seed_draws_the_same_again_and_everything_is_drawn() -> None:
    assert [drawn(random.Random(seed)) for seed in range(300)] == SOME
    cuts = [cut for schedule in SOME for cut in schedule.cuts]
    assert {cut.act for cut in cuts} == set(ACTS)
    assert {schedule.nodes for schedule in SOME} == set(NODES)
    assert {cut.place for cut in cuts if cut.act == "kill"} == set(range(RANKS))
    assert all(len(schedule.cuts) <= MOST for schedule in SOME)
    assert not any(cut.act == "apart" for schedule in SOME for cut in schedule.cuts if schedule.nodes == 2)


def test_never_more_hosts_are_lost_than_stand_by() -> None:
    for act in ACTS:
        for place in range(4):
            lost = victims(Cut(act, place, 5, 0.0), FOUR, AROUND)
            assert len(set(lost)) == len(lost) == {"power": 1, "kill": 0}.get(act, SPARE)
            if act == "pair":
                assert AROUND[lost[0]] == lost[1]
            if act == "apart":
                assert AROUND[lost[0]] != lost[1] and AROUND[lost[1]] != lost[0]


def followed(reached: int, began: int, source: str, slowest_s: float = STEP_S, load: float = 1.0) -> Followed:
    return Followed(reached, began, source, stored_before=20, stored_after=40, slowest_s=slowest_s, load=load)


@pytest.mark.parametrize(
    ("act", "came", "words"),
    [
        ("power", followed(45, 45, "peer"), ""),
        ("power", followed(45, 44, "peer"), ""),
        ("power", followed(45, 43, "peer"), "2 steps are made again, at most 1 may be"),
        ("power", followed(45, 43, "peer", 5 * STEP_S), ""),
        ("power", followed(45, 43, "peer", load=20.0), ""),
        ("kill", followed(45, 43, "memory", 5 * STEP_S), ""),
        ("kill", followed(45, 43, "memory"), "2 steps are made again, at most 1 may be"),
        ("kill", followed(45, 40, "storage"), "5 steps are made again"),
        ("kill", followed(45, 46, "memory"), ""),
        ("apart", followed(45, 47, "peer"), "which nobody had made"),
        ("pair", followed(45, 40, "storage"), ""),
        ("pair", followed(45, 20, "storage"), ""),
        ("pair", followed(45, 0, ""), "and nobody had a copy"),
        ("pair", followed(65, 60, "storage"), "storage had step 20 to 40"),
        ("pair", followed(45, 44, "peer"), "and nobody had a copy"),
    ],
)
def test_what_a_cut_may_cost(act: str, came: Followed, words: str) -> None:
    problem = judge(Cut(act, 0, 5, 0.5), came)
    assert words in problem if words else problem == ""


def test_the_weights_of_an_undisturbed_run_depend_on_each_step() -> None:
    assert len({tuple(undisturbed(steps)) for steps in range(50)}) == 50
