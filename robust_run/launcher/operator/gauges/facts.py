"""All that metrics are made of. No behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.launcher.controller.steps import StepBook
from robust_run.launcher.model.code_events import CodeRecord
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.status_types import JobView
from robust_run.report.types import Incident
from robust_run.tracer.nccl.types import CommRate


class NewestCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint under --ckpt-dir."""

    written_unix_s: float
    step: int | None = None


class GaugeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job when it is asked for metrics."""

    job: JobView
    incidents: Sequence[Incident] = ()
    nccl: Sequence[CommRate] = ()
    """What NCCL completed since this controller began."""
    course: Course | None = None
    """None: the journal cannot be read."""
    steps: StepBook | None = None
    code: CodeRecord | None = None
    """The version that runs."""
    max_restarts: int = 0
    restarts_without_progress: int = 0
    silence_s: float | None = None
    """The longest of any connected agent; None: none is connected, or there is one node."""
    notices: Mapping[str, int] = {}
    """Notifications by outcome: sent, failed, suppressed."""
    checkpoint: NewestCheckpoint | None = None
    phases: Mapping[str, float] = {}
    """Start-up of the newest attempt: seconds by phase, of the node or rank that took longest."""
    name_nodes: int = 0
    """How many of the slowest nodes are named in labels; 0, the default: none."""
