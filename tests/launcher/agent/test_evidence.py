"""When a rank raised what ended it, by its interpreter: an exception that is shown like the last may not be the last."""

from __future__ import annotations

import pytest

from robust_run.launcher.agent.evidence import LONGEST_END_S, last_raised
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
