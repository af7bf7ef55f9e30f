"""Questions about checks: nobody waits for an agent that is gone, and its silence is nobody's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stories import several_nodes

from robust_run.launcher.controller.checks.asking import Asking, Question
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.check_events import ChecksSaid, RunChecks


class Timer:
    def cancel(self) -> None:
        pass


def asked(state: JobState) -> tuple[Asking, list[Callable[[], None]], list[Question]]:
    """Ask agents a and b to run checks; return also what is called later and the closed questions."""
    calls: list[Callable[[], None]] = []
    closed: list[Question] = []

    def later(_delay_s: float, call: Callable[[], None]) -> Any:
        calls.append(call)
        return Timer()

    asking = Asking(state, lambda _node, _order: None, later)
    told = {node: RunChecks(number=0, orders=()) for node in ("a", "b")}  # type: ignore[arg-type]
    asking.ask(1, told, 63.0, closed.append)
    return asking, calls, closed


def two() -> JobState:
    return several_nodes("a", "b").state


def test_an_agent_that_is_lost_meanwhile_is_gone_and_not_silent() -> None:
    state = two()
    asking, calls, closed = asked(state)
    asking.take("a", ChecksSaid(number=1, is_over=True))
    state.members["b"].present = False
    asking.wait_for_nobody_gone()
    calls[-1]()
    assert "b" in closed[0].gone and "a" not in closed[0].gone


def test_an_agent_that_connected_again_may_answer_and_is_not_blamed_if_it_does_not() -> None:
    asking, calls, closed = asked(two())
    asking.was_away("a")
    asking.was_away("b")
    asking.take("a", ChecksSaid(number=1, is_over=True))
    calls[0]()
    assert set(closed[0].gone) == {"b"}
