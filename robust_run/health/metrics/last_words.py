"""What a worker reported right before it ended: the sensors look once a second, and a script may exit on NaN sooner than that."""

from __future__ import annotations

import msgspec

from robust_run.health.metrics import reports
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.signs.training import TrainingState, judge
from robust_run.health.types import Finding


def nan_at_the_end(path: str, settings: TrainingSettings) -> str:
    """Return `loss is nan at step 9` where a report file ends so, else nothing. Never raises."""
    points = reports.read(path).points
    state, events = judge(settings, "", TrainingState(), points, 0.0)
    if not any(series.bad for series in state.series.values()):
        return ""  # it went on with numbers
    return next((each.detail for each in reversed(events) if each.name == "training.nan"), "")


def with_nan(finding: Finding | None, said: str) -> Finding | None:
    """Return what a worker that failed said, with what it reported last: a finding of another trouble stays as it is."""
    if not said:
        return finding
    if finding is None:
        return Finding(kind="exception", line=said, trouble="nan")
    if finding.kind == "exception" and not finding.trouble:
        return msgspec.structs.replace(finding, trouble="nan")
    return finding
