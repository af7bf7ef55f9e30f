"""When a rank raised what ended it, by its interpreter: an exception that is shown like the last may not be the last."""

from __future__ import annotations

import msgspec
import pytest

from robust_run.health.types import Finding
from robust_run.launcher.agent.evidence import LONGEST_END_S, last_raised, was_cleaning_up
from robust_run.tracer.files.steps import StepCount


def steps(raised_s: float | None, stepped_s: float | None = None) -> StepCount:
    return StepCount(
        pid=1,
        steps=int(stepped_s is not None),
        first_step_monotonic_s=stepped_s,
        last_step_monotonic_s=stepped_s,
        raised_monotonic_s=raised_s,
    )


@pytest.mark.parametrize("exit_code", [1, -15, None])
@pytest.mark.parametrize("stepped_s", [None, 99.9])
def test_what_a_rank_raised_just_before_its_end_ended_it(exit_code: int | None, stepped_s: float | None) -> None:
    assert last_raised(steps(100.0, stepped_s), exit_code, 100.0 + LONGEST_END_S / 2) == 100.0


@pytest.mark.parametrize(
    ("count", "exit_code", "ended_at_s"),
    [
        pytest.param(steps(None), 1, 101.0, id="nothing was noted"),
        pytest.param(steps(100.0), 0, 101.0, id="it ended well"),
        pytest.param(steps(100.0, 100.5), 1, 101.0, id="it has made steps since"),
        pytest.param(steps(100.0), -15, 100.1 + LONGEST_END_S, id="it lived on"),
    ],
)
def test_what_did_not_end_it_is_not_taken_for_it(count: StepCount, exit_code: int, ended_at_s: float) -> None:
    assert last_raised(count, exit_code, ended_at_s) is None


RAISED = Finding(kind="exception", line="ValueError: boom", exception="ValueError", message="boom")
ABORTED = Finding(kind="native_crash", line="terminate called without an active exception")


@pytest.mark.parametrize(
    ("noted", "exit_code", "finding", "is_so"),
    [
        pytest.param(True, -11, None, True, id="a signal, after its end"),
        pytest.param(True, -6, ABORTED, True, id="and with the words of C++"),
        pytest.param(False, -11, None, False, id="no end was noted"),
        pytest.param(True, 1, None, False, id="no signal"),
        pytest.param(True, None, None, False, id="it lives"),
        pytest.param(True, -11, RAISED, False, id="it shows an exception, which its interpreter may have forgotten"),
    ],
)
def test_who_died_while_it_cleaned_up(noted: bool, exit_code: int | None, finding: Finding | None, is_so: bool) -> None:
    count = msgspec.structs.replace(steps(None), ended_monotonic_s=100.0 if noted else None)
    assert was_cleaning_up(count, exit_code, finding) == is_so
    assert not was_cleaning_up(None, exit_code, finding)
