"""Which agents of a job have died, from its journal: each is to be replaced once, whoever reads it and however often. Pure."""

from __future__ import annotations

from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted
from robust_run.launcher.records.folds.agents import Agents
from robust_run.launcher.records.folds.evicted import MARKS, Evicted
from robust_run.launcher.records.journal import JournalEntry

MARKS_OF_DEATHS = (*MARKS, b'"finish"')
"""A line without any of them changes nothing here."""


class Deaths:
    """Follows a journal. A node's name says nothing of an agent, because its next agent has the same."""

    def __init__(self) -> None:
        self._agents = Agents()
        self.evicted = Evicted()
        self._seen_to: set[str] = set()
        self._is_told = self._is_over = False
        """To end; or it has. Agents go then, and one that does not say so in time is no death to be mended."""

    def take(self, entry: JournalEntry) -> tuple[str, ...]:
        """Take in what happened; return the hosts that were evicted by it."""
        is_requeued = self._agents.take(entry.event)
        self._is_told = (self._is_told and not is_requeued) or isinstance(entry.event, SignalReceived)
        goes_on = isinstance(
            entry.event, (ControllerResumed, JobStarted)
        )  # the end was by a controller that was followed
        self._is_over = (self._is_over and not goes_on) or isinstance(entry.action, Finish)
        self._seen_to.intersection_update(self._agents.gone)
        return self.evicted.take(entry)

    def _dead(self) -> list[str]:
        return [node for node, has_died in self._agents.gone.items() if has_died]

    def due(self) -> list[tuple[str, str]]:
        """Return the agents to be seen to, with the names of their nodes, in the order of these. None is returned twice.

        On a node that is evicted none is due; once it is readmitted, one is. In a job that ends none is.
        """
        if self._is_told or self._is_over:
            return []
        dead = [(node, self._agents.names[node]) for node in self._dead()]
        found = [each for each in dead if each[0] not in self._seen_to and each[1] not in self.evicted.now]
        self._seen_to.update(node for node, _ in found)
        return sorted((each for each in found if self.is_alone(each[0])), key=lambda each: each[1])

    def is_alone(self, node: str) -> bool:
        """Whether an agent is dead, and no other one lives on its node."""
        names, gone = self._agents.names, self._agents.gone
        return (
            not (self._is_told or self._is_over)
            and gone.get(node, False)
            and all(gone.get(other) for other, theirs in names.items() if theirs == names[node])
        )
