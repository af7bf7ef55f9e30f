"""How long a job of several roles waits for nodes that may never come: as somebody says, else by who could bring them back."""

from __future__ import annotations

import pytest

from robust_run.errors import UserError
from robust_run.orchestrator.nodes.under_slurm import PATIENCE_S, patience_s


@pytest.mark.parametrize(
    ("asked_s", "is_under_slurm", "waits_s"),
    [(None, False, None), (None, True, PATIENCE_S), (5.0, False, 5.0), (600.0, True, 600.0), (0.0, False, 0.0)],
)
def test_who_says_nothing_waits_for_ever_but_under_slurm(
    asked_s: float | None, is_under_slurm: bool, waits_s: float | None
) -> None:
    assert patience_s(asked_s, is_under_slurm=is_under_slurm) == waits_s


@pytest.mark.parametrize("asked_s", [-1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(asked_s: float) -> None:
    with pytest.raises(UserError, match=r"--wait-for-nodes .* must be 0 or more"):
        patience_s(asked_s, is_under_slurm=False)
