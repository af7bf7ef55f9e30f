"""NaN right before the exit."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.health.metrics.last_words import nan_at_the_end, with_nan
from robust_run.health.metrics.reporting import Reporter
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.types import Finding


@pytest.mark.parametrize(
    ("losses", "says"),
    [((1.0, float("nan")), "loss is nan at step 1"), ((float("nan"), 1.0), ""), ((1.0,), ""), ((), "")],
)
def test_only_what_a_worker_ended_with_counts(tmp_path: Path, losses: tuple[float, ...], says: str) -> None:
    path = str(tmp_path / "rank_0.report")
    reporter = Reporter(path)
    for step, loss in enumerate(losses):
        reporter.write(step, {"loss": loss})
    assert nan_at_the_end(path, TrainingSettings()) == says


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert nan_at_the_end(str(tmp_path / "none"), TrainingSettings()) == ""


def test_a_worker_that_gave_another_reason_keeps_it() -> None:
    exception = Finding(kind="exception", line="RuntimeError: bad loss")
    ecc = Finding(kind="accelerator", line="ECC", trouble="ecc")
    assert [getattr(with_nan(each, "loss is nan"), "trouble", "") for each in (None, exception, ecc)] == [
        "nan",
        "nan",
        "ecc",
    ]
    assert with_nan(exception, "") is exception
