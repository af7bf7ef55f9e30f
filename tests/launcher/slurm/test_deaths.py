"""Each agent that dies is replaced once."""

from __future__ import annotations

from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import Event, SignalReceived
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    NodeEvicted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReadmitted,
    NodeReturned,
)
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.rules.deaths import Deaths

KILLED = NodeLeft(node="a", reason="it was told to by SIGKILL")
LOST = NodeLost(node="a", silent_s=3.6)


def joined(agent: str, name: str) -> NodeJoined:
    return NodeJoined(node=NodeInfo(id=agent, name=name, nproc=1))


def after(*events: Event) -> Deaths:
    deaths = Deaths()
    for event in events:
        deaths.take(JournalEntry(at=0.0, mono=0.0, event=event))
    return deaths


def test_an_agent_that_is_lost_or_was_killed_is_due_and_one_that_was_told_to_go_is_not() -> None:
    assert after(joined("a", "rr1"), LOST).due() == [("a", "rr1")]
    assert after(joined("a", "rr1"), KILLED).due() == [("a", "rr1")]
    assert after(joined("a", "rr1"), NodeLeft(node="a", reason="it was told to by SIGTERM")).due() == []


def test_an_agent_that_left_and_falls_silent_then_has_died_once() -> None:
    deaths = after(joined("a", "rr1"), KILLED)
    assert deaths.due() == [("a", "rr1")]
    for event in (LOST, joined("b", "rr1"), LOST):
        deaths.take(JournalEntry(at=0.0, mono=0.0, event=event))
        assert deaths.due() == []
    assert not deaths.is_alone("a"), "another agent is there"


def test_an_agent_that_came_in_its_place_and_dies_is_due_in_its_turn() -> None:
    deaths = after(joined("a", "rr1"), LOST)
    assert deaths.due() == [("a", "rr1")]
    for event in (joined("b", "rr1"), NodeLost(node="b", silent_s=3.6)):
        deaths.take(JournalEntry(at=0.0, mono=0.0, event=event))
    assert deaths.due() == [("b", "rr1")]


def test_an_agent_that_is_back_is_not_replaced_and_dies_anew() -> None:
    deaths = after(joined("a", "rr1"), LOST)
    assert deaths.due() == [("a", "rr1")]
    deaths.take(JournalEntry(at=0.0, mono=0.0, event=NodeReturned(node="a")))
    assert not deaths.is_alone("a")
    deaths.take(JournalEntry(at=0.0, mono=0.0, event=LOST))
    assert deaths.due() == [("a", "rr1")]


def test_nobody_is_started_on_an_evicted_node() -> None:
    evicted = NodeEvicted(name="rr1", reason="bad GPU")
    assert after(joined("a", "rr1"), LOST, evicted).due() == []
    assert after(joined("a", "rr1"), evicted, LOST).due() == [], "its agent dies later"
    readmitted = NodeReadmitted(name="rr1")
    assert after(joined("a", "rr1"), LOST, evicted, readmitted).due() == [("a", "rr1")], "it may be used again"


def test_what_died_before_a_requeue_is_over() -> None:
    resumed = ControllerResumed(term=2, restart=1)
    assert after(joined("a", "rr1"), LOST, resumed, joined("b", "rr2")).due() == []
    assert after(joined("a", "rr1"), LOST, ControllerResumed(term=2)).due() == [("a", "rr1")], "a takeover is none"


def test_in_a_job_that_ends_nobody_is_started_for_an_agent_that_goes() -> None:
    told = SignalReceived(signal=15)
    assert after(joined("a", "rr1"), told, LOST).due() == []
    late = after(joined("a", "rr1"), LOST)
    assert late.due() == [("a", "rr1")]
    late.take(JournalEntry(at=0.0, mono=0.0, event=told))
    assert not late.is_alone("a"), "it was told to end while Slurm was asked"
    over = after(joined("a", "rr1"))
    over.take(JournalEntry(at=0.0, mono=0.0, action=Finish(exit_code=1, outcome="failed", reason="", sentence="")))
    over.take(JournalEntry(at=0.0, mono=0.0, event=LOST))
    assert over.due() == []


def test_a_job_that_goes_on_after_an_end_that_was_none_has_its_agents_replaced() -> None:
    """A controller that was cut off says that the job is over, and another one leads on."""
    deaths = after(joined("a", "rr1"))
    deaths.take(JournalEntry(at=0.0, mono=0.0, action=Finish(exit_code=1, outcome="failed", reason="", sentence="")))
    for event in (ControllerResumed(term=2), LOST):
        deaths.take(JournalEntry(at=0.0, mono=0.0, event=event))
    assert deaths.due() == [("a", "rr1")]
    told = after(joined("a", "rr1"), SignalReceived(signal=15), ControllerResumed(term=2), LOST)
    assert told.due() == [], "the next controller goes on ending it"


def test_a_job_that_goes_on_after_a_requeue_has_its_agents_replaced_again() -> None:
    again = (ControllerResumed(term=2, restart=1), joined("b", "rr1"), NodeLost(node="b", silent_s=3.6))
    assert after(joined("a", "rr1"), SignalReceived(signal=15), LOST, *again).due() == [("b", "rr1")]
