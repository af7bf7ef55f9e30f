"""What a signal means to a node of several, and what it does then: ends the job, leaves it, or leaves it in a moment."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.launcher.control.messages import EventReport, FromAgent, Leaving, ToldToLeave
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.start.many.departure import NOBODY_FOLLOWS, PATIENCE_S, TOGETHER_S, Departure, answer_of

TERM, INT = signal.SIGTERM, signal.SIGINT
HOST, HOST_ALONE, GUEST = (True, True), (True, False), (False, False)
"""Whether a node leads, and whether another one could."""


@pytest.mark.parametrize(
    ("number", "on_sigterm", "where", "is_told", "again", "answer"),
    [
        pytest.param(TERM, "job", HOST, False, False, "end_job", id="a person types kill at the first launcher"),
        pytest.param(TERM, "job", GUEST, False, False, "leave", id="and at another one"),
        pytest.param(INT, "node", HOST, False, False, "end_job", id="Ctrl-C"),
        pytest.param(INT, "node", HOST, True, False, "end_job", id="Ctrl-C after a SIGTERM"),
        pytest.param(INT, "node", GUEST, False, False, "leave", id="Ctrl-C at another node"),
        pytest.param(TERM, "node", HOST, False, False, "leave_soon", id="a drain of the controller's node"),
        pytest.param(TERM, "node", HOST_ALONE, False, False, "end_job", id="and nobody could lead"),
        pytest.param(TERM, "node", GUEST, False, False, "leave_soon", id="a drain of another node"),
        pytest.param(TERM, "node", HOST, True, False, "leave_soon", id="the same signal, to each process"),
        pytest.param(TERM, "node", HOST, True, True, "leave_now", id="a second one"),
        pytest.param(
            TERM, "node", HOST_ALONE, True, False, "leave_soon", id="all are told, and none is in line any more"
        ),
        pytest.param(signal.SIGHUP, "node", HOST, False, False, "end_job", id="the terminal is closed"),
    ],
)
def test_the_answer(
    number: int, on_sigterm: str, where: tuple[bool, bool], is_told: bool, again: bool, answer: str
) -> None:
    leads, can_follow = where
    found = answer_of(number, again=again, on_sigterm=on_sigterm, leads=leads, can_follow=can_follow, is_told=is_told)
    assert found == answer


class Loop:
    """Timers that a test lets run out."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> SimpleNamespace:
        timer = (delay_s, lambda: call(*args))
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def ring(self) -> float:
        """Let the only timer run out; return how long it was."""
        (timer,) = self.timers
        self.timers.remove(timer)
        timer[1]()
        return timer[0]


class Node:
    """A departure and all around it."""

    def __init__(self, *, leads: bool = False, can_follow: bool = True, is_running: bool = True) -> None:
        self.sent: list[FromAgent] = []
        self.said: list[str] = []
        self.ended: list[tuple[int, float, float]] = []
        self.left: list[int] = []
        self.leads, self.can_follow = leads, can_follow
        self.loop = Loop()
        self.agent = SimpleNamespace(
            is_running=is_running, leave=self.left.append, end_for=lambda *how: self.ended.append(how)
        )
        spec = SimpleNamespace(many=SimpleNamespace(on_sigterm="node"), shutdown_timeout_s=60.0, restart_grace_s=3.0)
        self.departure = Departure(
            self.agent,  # type: ignore[arg-type]
            spec,  # type: ignore[arg-type]
            self.sent.append,
            self.said.append,
            leads=lambda: self.leads,
            can_follow=lambda: self.can_follow,
        )
        self.departure.loop = self.loop  # type: ignore[assignment]

    def is_told(self, number: int = TERM, *, again: bool = False) -> None:
        self.departure.told_to_end(number, again=again)


LEAVING = Leaving(reason="it was told to by SIGTERM")


def test_a_node_that_is_drained_says_so_at_once_and_trains_on_for_a_moment() -> None:
    node = Node(leads=True)
    node.is_told()
    assert (node.sent, node.ended) == ([ToldToLeave(signal=15)], [])
    assert node.loop.ring() == TOGETHER_S
    assert (node.sent[1:], node.ended) == ([LEAVING], [(15, 60.0, 3.0)])
    node.agent.is_running = False
    node.departure.workers_ended()
    assert node.left == [143]


def test_if_the_job_ends_meanwhile_it_waits_for_that_but_not_for_ever() -> None:
    node = Node()
    node.is_told()
    node.departure.job_ends()
    assert node.loop.ring() == 60.0 + 3.0 + PATIENCE_S
    assert node.sent[1:] == [LEAVING], "the controller is gone, it seems"


def test_a_new_controller_is_told_what_the_one_before_was_told() -> None:
    node = Node()
    node.is_told()
    node.departure.say_again()
    node.loop.ring()
    node.departure.say_again()
    assert node.sent == [ToldToLeave(signal=15)] * 2 + [LEAVING] * 2


def test_where_whoever_could_lead_is_gone_by_then_the_job_ends_and_says_why() -> None:
    node = Node(leads=True)
    node.is_told()
    node.can_follow = False
    node.loop.ring()
    assert node.sent[1:] == [EventReport(events=(SignalReceived(signal=15),))]
    assert node.said[-1] == NOBODY_FOLLOWS
    assert not node.ended, "the controller has the workers ended on all nodes"


def test_a_node_that_leads_alone_ends_the_job_at_once() -> None:
    node = Node(leads=True, can_follow=False)
    node.is_told()
    assert node.sent == [EventReport(events=(SignalReceived(signal=15),))]
    assert node.said == [NOBODY_FOLLOWS]


def test_a_second_signal_ends_the_workers_at_once() -> None:
    node = Node()
    node.is_told()
    node.is_told(again=True)
    assert node.ended == [(9, 0.0, 0.0)]


def test_ctrl_c_after_a_drain_ends_the_job() -> None:
    node = Node(leads=True)
    node.is_told()
    node.is_told(INT)
    assert node.sent[1:] == [EventReport(events=(SignalReceived(signal=2),))]
    assert node.loop.ring() == 60.0 + 3.0 + PATIENCE_S, "and it does not leave in between"
