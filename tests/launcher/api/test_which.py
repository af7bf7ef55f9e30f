"""Which controller a command speaks to, where it only begins or is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.operator.reading.client import ApiTarget, NoAnswerError
from robust_run.launcher.operator.reading.which import BEGIN_S, Subject, patiently

ANSWERS = ApiTarget(socket="/run/api.sock")


class Turned:
    """A clock that stands still between naps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


def ask_when(clock: Turned, answers_at_s: float) -> ApiTarget:
    if clock.now_s < answers_at_s:
        raise NoAnswerError("its controller is gone", refused=True)
    return ANSWERS


def test_a_job_that_has_only_just_begun_is_waited_for() -> None:
    clock = Turned()
    assert patiently(lambda: ask_when(clock, 101.0), lambda: True, clock, clock.sleep) is ANSWERS
    assert clock.now_s == pytest.approx(101.0, abs=0.1)


def test_one_that_never_answers_is_given_up() -> None:
    clock = Turned()
    with pytest.raises(NoAnswerError):
        patiently(lambda: ask_when(clock, 1e9), lambda: True, clock, clock.sleep)
    assert clock.now_s == pytest.approx(100.0 + BEGIN_S, abs=0.1)


def test_one_that_is_dead_is_not_waited_for() -> None:
    clock = Turned()
    with pytest.raises(NoAnswerError):
        patiently(lambda: ask_when(clock, 1e9), lambda: False, clock, clock.sleep)
    assert clock.now_s == 100.0


def test_of_a_job_that_ends_while_it_is_asked_the_journal_tells(
    make_controller: Callable[..., Any], run_directory: Path
) -> None:
    controller = make_controller().start()
    controller.tell(SignalReceived(signal=15))
    controller.end_attempt()
    about = Subject(str(run_directory), ApiTarget(socket=str(run_directory / "gone.sock")))
    assert about.life().life == "over"
    assert not about.is_alive
