"""How long what runs on a node may run, and when its leader takes it for gone: in that order, whoever is late."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from role_desk import ROLLOUT, Desk, desk

from robust_run.orchestrator.model.node_words import (
    GONE_S,
    KILL_S,
    LEASE_S,
    Beat,
    Happened,
    LauncherNow,
    Leaving,
    NotYet,
    Order,
    StopOrder,
)
from robust_run.orchestrator.model.words import WorldEnded
from robust_run.orchestrator.rules.lease import NodeLease


def test_a_node_ends_what_runs_there_and_then_kills_it() -> None:
    lease = NodeLease(100.0)
    assert [lease.due(at_s) for at_s in (100.0, 119.9, 120.0, 124.9, 125.0, 500.0)] == [
        "",
        "",
        "end",
        "end",
        "kill",
        "kill",
    ]
    lease.renewed(110.0)
    assert lease.due(125.0) == ""


def test_an_old_answer_that_is_read_late_renews_nothing() -> None:
    """A process that was stopped for a minute finds answers in its socket."""
    lease = NodeLease(0.0)
    lease.renewed(30.0)
    lease.renewed(1.0)
    assert (lease.until_s, lease.due(90.0)) == (30.0 + LEASE_S + KILL_S, "kill")


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20))
def test_whoever_is_late_the_lease_is_over_before_the_leader_takes_the_node_for_gone(
    beats: list[tuple[float, float, float]],
) -> None:
    """Each sign of life: how long after the one before it was sent, how late the leader took it in, how late the answer was."""
    sent_s, lease, heard_s = 0.0, NodeLease(0.0), 0.0
    for pause_s, late_s, answer_late_s in beats:
        sent_s += pause_s
        if sent_s + late_s >= heard_s + GONE_S:
            break  # it was taken for gone: later signs are not answered
        heard_s = max(heard_s, sent_s + late_s)
        del answer_late_s  # however late: what it renews is told from when its question was sent
        lease.renewed(sent_s)
    assert lease.until_s <= heard_s + LEASE_S + KILL_S < heard_s + GONE_S


def test_a_connection_that_breaks_says_nothing_and_the_node_comes_back() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        first = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.went(first)
        assert desk.gone() == []
        again = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        assert again.ended is None
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == [], "it still runs there"

    desk(story)


def test_one_that_comes_back_takes_the_place_of_its_own_old_connection() -> None:
    def story(desk: Desk) -> None:
        first, again = desk.connect(), desk.connect()
        assert first.ended is not None and again.ended is None
        desk.hear(first, Beat(sent_s=1.0))
        desk.hear(again, Beat(sent_s=2.0))
        assert (first.sent, again.sent) == ([], [Beat(sent_s=2.0)])

    desk(story)


def test_another_machine_of_the_same_name_is_refused_while_the_first_lives() -> None:
    def story(desk: Desk) -> None:
        first, other = desk.connect(), desk.connect(boot="2", guard="other")
        assert "is here already" in (other.ended or "") and first.ended is None
        assert desk.gone() == []

    desk(story)


def test_a_guard_that_is_another_waits_until_what_the_first_started_cannot_run_any_more() -> None:
    """It knows nothing of launchers of the one before, which may take half a minute to end."""

    async def later(desk: Desk) -> None:
        desk.runs()
        desk.went(desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),)))
        other = desk.connect(boot="2", guard="other")
        assert isinstance(other.sent[0], NotYet) and "may not have ended" in other.sent[0].why
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == []
        await asyncio.sleep(0.2)
        assert desk.gone() == ["b"]
        assert desk.connect(boot="2", guard="other").ended is None

    desk(later, 0.05)


def test_signs_of_life_keep_it_and_silence_does_not() -> None:
    async def later(desk: Desk) -> None:
        worker = desk.connect()
        for number in range(8):
            await asyncio.sleep(0.05)
            desk.hear(worker, Beat(sent_s=float(number)))
        assert desk.gone() == []
        while not desk.gone():
            await asyncio.sleep(0.05)
        assert "silent" in (worker.ended or "")

    desk(later, 0.3)


def test_what_happened_is_taken_in_once_and_a_new_process_counts_anew() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        ended = WorldEnded(member=ROLLOUT, serial=1, code=0)
        worker = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        for _ in range(2):
            desk.hear(worker, Happened(number=1, event=ended))
        assert desk.told.count(ended) == 1
        desk.went(worker)
        again = desk.connect(boot="2", launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.hear(again, Happened(number=1, event=ended))
        assert desk.told.count(ended) == 2

    desk(story)


def test_one_that_leaves_is_gone_with_its_connection_and_its_members_have_not_failed() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        worker = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.hear(worker, Leaving(why="it was sent SIGTERM"))
        desk.hear(worker, Happened(number=1, event=WorldEnded(member=ROLLOUT, serial=1, code=143)))
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == []
        desk.went(worker)
        assert desk.gone() == ["b"]

    desk(story)


def test_both_agree_on_what_runs_when_a_node_comes() -> None:
    def story(desk: Desk) -> None:
        desk.runs("starting", serial=2)
        old = LauncherNow(member=ROLLOUT, serial=1)
        worker = desk.connect(launchers=(old,))
        starts = [each.start.serial for each in worker.sent if isinstance(each, Order)]
        stops = [each.stop.serial for each in worker.sent if isinstance(each, StopOrder)]
        assert (starts, stops) == ([2], [1]), "the order that was lost, and a launcher of before"

    desk(story)


def test_a_node_above_the_most_waits_until_another_is_gone() -> None:
    def story(desk: Desk) -> None:
        desk.book.most = 1
        first, second = desk.connect(), desk.connect(name="c", boot="2", guard="h")
        assert [type(each) for each in second.sent] == [NotYet]
        desk.hear(first, Leaving(why="it was sent SIGTERM"))
        desk.went(first)
        third = desk.connect(name="c", boot="2", guard="h")
        assert (third.sent, third.ended) == ([], None)

    desk(story)
