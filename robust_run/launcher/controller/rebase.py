"""Turns the times in an agent's reports into the controller's. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.events import AttemptEnded, FirstStep, NodeEvent
from robust_run.launcher.types import RankEvidence


def rebase(event: NodeEvent, ahead_s: float) -> NodeEvent:
    """Return the event with its monotonic times moved by what the controller's clock is ahead of the agent's."""
    if isinstance(event, FirstStep):
        return msgspec.structs.replace(event, at_s=event.at_s + ahead_s)
    if isinstance(event, AttemptEnded):
        ranks = tuple(_rank(rank, ahead_s) for rank in event.ranks)
        return msgspec.structs.replace(event, started_at_s=event.started_at_s + ahead_s, ranks=ranks)
    return event


def _rank(rank: RankEvidence, ahead_s: float) -> RankEvidence:
    def moved(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + ahead_s

    return msgspec.structs.replace(
        rank,
        exited_at_s=rank.exited_at_s + ahead_s,
        signalled_at_s=moved(rank.signalled_at_s),
        spoke_at_s=moved(rank.spoke_at_s),
    )
