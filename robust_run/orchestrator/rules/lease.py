"""How long what runs on a node may run without a word of the leader. Pure.

The lease counts from when the sign of life was *sent* whose answer came, never from when the answer was read: a process that was
stopped for a minute reads old answers first. The leader counts from when it received that sign, which is later; so a node's lease
is over before the leader takes it for gone, whatever either of them was late by.
"""

from __future__ import annotations

from typing import Literal

from robust_run.orchestrator.model.node_words import KILL_S, LEASE_S

Due = Literal["", "end", "kill"]
"""What is to be done with all launchers of this node."""


class NodeLease:
    """Of one node. Times are of its monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._from_s = now_s

    @property
    def until_s(self) -> float:
        """When nothing of the job may run here any more."""
        return self._from_s + LEASE_S + KILL_S

    def renewed(self, sent_s: float) -> None:
        """The leader has answered a sign of life that was sent then."""
        self._from_s = max(self._from_s, sent_s)

    def due(self, now_s: float) -> Due:
        """Return what is to be done now."""
        if now_s >= self.until_s:
            return "kill"
        return "end" if now_s >= self._from_s + LEASE_S else ""
