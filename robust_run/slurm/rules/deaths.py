"""Which agents of a job have died, from its journal: each is to be replaced once, whoever reads it and however often. Pure."""

from __future__ import annotations

from robust_run.launcher.records.folds.agents import Agents
from robust_run.launcher.records.folds.evicted import Evicted
from robust_run.launcher.records.journal import JournalEntry


class Deaths:
    """Follows a journal. A node's name says nothing of an agent, because its next agent has the same."""

    def __init__(self) -> None:
        self._agents = Agents()
        self.evicted = Evicted()
        self._seen_to: set[str] = set()

    def take(self, entry: JournalEntry) -> tuple[str, ...]:
        """Take in what happened; return the hosts that were evicted by it."""
        self._agents.take(entry.event)
        self._seen_to.intersection_update(self._agents.gone)
        return self.evicted.take(entry)

    def _dead(self) -> list[str]:
        return [node for node, has_died in self._agents.gone.items() if has_died]

    def due(self) -> list[tuple[str, str]]:
        """Return the agents to be seen to, with the names of their nodes, in the order of these. None is returned twice.

        On a node that is evicted none is due; once it is readmitted, one is.
        """
        dead = [(node, self._agents.names[node]) for node in self._dead()]
        found = [each for each in dead if each[0] not in self._seen_to and each[1] not in self.evicted.now]
        self._seen_to.update(node for node, _ in found)
        return sorted((each for each in found if self.is_alone(each[0])), key=lambda each: each[1])

    def is_alone(self, node: str) -> bool:
        """Whether an agent is dead, and no other one lives on its node."""
        names, gone = self._agents.names, self._agents.gone
        return gone.get(node, False) and all(
            gone.get(other) for other, theirs in names.items() if theirs == names[node]
        )
