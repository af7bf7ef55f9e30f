"""A leader whose own node leaves in good order gives the leadership away, when that is on record and somebody can follow."""

from __future__ import annotations

import pytest

from robust_run.launcher.controller.leadership.handing_over import RECORD_S, Handing, Line, handing_of


@pytest.mark.parametrize(
    ("has_left", "job_ends", "line", "is_kept", "since_s", "what"),
    [
        pytest.param(True, False, "answers", True, 0.0, "resign", id="a drain"),
        pytest.param(False, False, "answers", True, 0.0, "stay", id="its node stays"),
        pytest.param(True, True, "answers", True, 9.0, "stay", id="the job is being ended: it has the last word"),
        pytest.param(True, True, "nobody", True, 9.0, "stay", id="the same, alone"),
        pytest.param(True, False, "answers", False, 0.0, "wait", id="a successor would not know"),
        pytest.param(True, False, "answers", False, RECORD_S, "resign", id="the disk is full"),
        pytest.param(True, False, "silent", True, 3.0, "wait", id="all others are starved: no reason to end the job"),
        pytest.param(True, False, "nobody", True, 0.0, "end_job", id="the last node"),
    ],
)
def test_what_it_does(has_left: bool, job_ends: bool, line: Line, is_kept: bool, since_s: float, what: Handing) -> None:
    assert handing_of(line, has_left=has_left, job_ends=job_ends, is_kept=is_kept, since_s=since_s) == what
