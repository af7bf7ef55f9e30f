"""Check requests to agents, with their answers: each has a time limit, and an agent that is gone is not waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from robust_run.health.checks.types import Ended, Result
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.check_events import CheckAnswer, ChecksSaid

#: Results that a node may give to one question: devices of a node are fewer.
MOST_RESULTS = 1024


class Question(msgspec.Struct, kw_only=True):
    """One order to some agents, and what they have answered."""

    asker: int
    awaited: set[str]
    answers: dict[str, CheckAnswer] = {}
    results: list[Result] = []
    counted: dict[str, int] = {}
    """Results of each agent."""
    told: frozenset[str] = frozenset()
    gone: dict[str, str] = {}
    """Why nothing follows from the silence of an agent: it is lost, has left, or was away."""
    then: Callable[[Question], None]
    timer: Any = None


class Asking:
    """The questions under way."""

    def __init__(
        self,
        state: JobState,
        send: Callable[[str, Order], None],
        later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._state = state
        self._send = send
        self._later = later
        self._questions: dict[int, Question] = {}
        self._number = 0

    def ask(self, asker: int, told: Mapping[str, Order], limit_s: float, then: Callable[[Question], None]) -> None:
        """Send orders, and call with what was answered: when all have, or at the limit."""
        self._number += 1
        number = self._number
        awaited = {node for node in told if is_there(self._state, node)}
        gone = {node: "it is not there" for node in told if node not in awaited}
        question = Question(asker=asker, awaited=awaited, told=frozenset(told), gone=gone, then=then)
        self._questions[number] = question
        question.timer = self._later(limit_s, lambda: self._close(number))
        for node, order in told.items():
            self._send(node, msgspec.structs.replace(order, number=number))
        self._close_if_answered(number)

    def take(self, node: str, answer: CheckAnswer) -> int:
        """Take in what an agent answers; return whose question it was, 0 if nobody's any more."""
        question = self._questions.get(answer.number)
        if question is None or node not in question.awaited:
            return 0
        is_over = True
        if isinstance(answer, ChecksSaid):
            name = self._state.members[node].info.name
            found = [each.result for each in answer.said if isinstance(each, Ended)]
            found = found[: MOST_RESULTS - question.counted.get(node, 0)]
            question.counted[node] = question.counted.get(node, 0) + len(found)
            question.results += [msgspec.structs.replace(each, node=name) for each in found]
            is_over = answer.is_over
        if is_over:
            question.answers[node] = answer
            question.gone.pop(node, None)
            question.awaited.discard(node)
            self._close_if_answered(answer.number)
        return question.asker

    def wait_for_nobody_gone(self) -> None:
        """Do not wait for agents that are lost or have left, and remember that they have."""
        for number, question in list(self._questions.items()):
            for node in question.told:
                if not is_there(self._state, node):
                    question.gone.setdefault(node, "it was lost or restarted meanwhile")
            question.awaited = {node for node in question.awaited if is_there(self._state, node)}
            self._close_if_answered(number)

    def was_away(self, node: str) -> None:
        """Wait on for an agent that connected again, but conclude nothing if it does not answer: it may not have been asked."""
        for question in self._questions.values():
            if node in question.awaited:
                question.gone.setdefault(node, "the connection to it broke meanwhile")

    def forget(self, asker: int) -> None:
        """Nobody wants to know any more."""
        for number, question in list(self._questions.items()):
            if question.asker == asker:
                self._questions.pop(number)
                question.timer.cancel()

    def _close_if_answered(self, number: int) -> None:
        question = self._questions.get(number)
        if question is not None and not question.awaited:
            question.timer.cancel()
            question.timer = self._later(0.0, lambda: self._close(number))  # not within what is happening

    def _close(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is not None:
            question.then(question)


def is_there(state: JobState, node: str) -> bool:
    """Whether an agent is part of the job now."""
    member = state.members.get(node)
    return member is not None and member.present
