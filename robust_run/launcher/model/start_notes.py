"""Startup reports of agents to their controller. No behaviour. Not imported on the way to the first worker of a one-node job."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.check_events import CheckAnswer
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.job import Paces, Sights
from robust_run.launcher.model.nccl_windows import NcclWindow
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.report.startup.types import NodeStart


class Starts(msgspec.Struct, frozen=True, tag="starts", kw_only=True):
    """How the start of an attempt goes on a node; for the controller alone, as `Sights` and `Paces` are."""

    start: NodeStart


Seen = Sights | Paces | Starts | CheckAnswer | CheckpointsSeen | NcclWindow | ReducedValues
"""What an agent sees of its ranks."""
