"""Sessions of checks, carried out by agents: what ends without a result says nothing of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stories import several_nodes

from robust_run.clock import SystemClock
from robust_run.health.checks.admission import ADMISSION, admit
from robust_run.health.checks.types import CheckJudgement, Ended, NodeFacts, Result
from robust_run.launcher.controller.checks.runner import CheckSessionRunner
from robust_run.launcher.model.check_events import ChecksSaid, FactsTold, RunChecks


class Timer:
    def cancel(self) -> None:
        pass


class Desk:
    """A runner of sessions, of whose orders each is answered as a test says; then all that was to be called later is called."""

    def __init__(self, answer: Callable[[RunChecks], ChecksSaid]) -> None:
        self.calls: list[Callable[[], None]] = []
        self.judged: list[CheckJudgement | None] = []
        self.answer = answer
        self.runner = CheckSessionRunner(
            state=several_nodes("a", "b").state,
            clock=SystemClock(),
            send=self._send,
            later=self._later,
            history_path="",
        )

    def _send(self, node: str, order: Any) -> None:
        told = self.answer(order) if isinstance(order, RunChecks) else facts_of(node, order)
        self.calls.append(lambda: void(self.runner.asking.take(node, told)))

    def _later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        if delay_s == 0:
            self.calls.append(call)
        return Timer()

    def admits(self) -> CheckJudgement:
        """Check node b alone, as a standby is."""
        self.runner.begin("admission", ADMISSION, {"b": "b"}, lambda _drive, judged: self.judged.append(judged))
        while self.calls:
            self.calls.pop(0)()
        (judged,) = self.judged
        assert judged is not None
        return judged


def facts_of(node: str, order: Any) -> FactsTold:
    return FactsTold(number=order.number, facts=NodeFacts(name=node))


def void(_: object) -> None:
    pass


def test_a_runner_that_was_ended_before_it_had_a_result_is_no_hang_of_its_node() -> None:
    judged = Desk(lambda order: ChecksSaid(number=order.number, is_over=True)).admits()
    assert not judged.suspects and not judged.passed
    assert "b could not be checked to the end: the process that makes its checks was ended" in judged.unchecked[0]
    assert admit(judged, "b").admitted


def test_a_runner_that_could_not_be_started_is_no_hang_either_and_says_why() -> None:
    judged = Desk(lambda order: ChecksSaid(number=order.number, is_over=True, problem="no memory")).admits()
    assert not judged.suspects and judged.unchecked == ("b could not be checked to the end: no memory",)


def test_what_a_runner_told_before_it_ended_counts() -> None:
    def half(order: RunChecks) -> ChecksSaid:
        check = order.orders[0].check
        wrong = ("a bit flipped",) if check == "compute" else ()
        said = (Ended(result=Result(check=check, node="b", outcome="done", wrong=wrong)),) if wrong else ()
        return ChecksSaid(number=order.number, is_over=True, said=said)

    judged = Desk(half).admits()
    assert [(each.node, each.rule) for each in judged.suspects] == [("b", "wrong_result")]
