"""Which agents of a job have died, from its journal: each is to be replaced once, whoever reads it and however often. Pure."""

from __future__ import annotations

from robust_run.launcher.model.events import (
    ControllerResumed,
    JobStarted,
    NodeEvicted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
)
from robust_run.launcher.records.journal import Entry


class Deaths:
    """Follows a journal. An agent is known by its id: a node's name says nothing, because its next agent has the same."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Of all agents since the last requeue, in the order they joined."""
        self._dead: dict[str, None] = {}
        self._seen_to: set[str] = set()
        self._restart = 0

    def take(self, entry: Entry) -> None:
        """Take in what happened."""
        match entry.event:
            case JobStarted(restart=restart) | ControllerResumed(restart=restart) if restart > self._restart:
                self._names, self._dead, self._restart = {}, {}, restart  # their nodes may be other jobs' by now
            case NodeJoined(node=node):
                self._names.setdefault(node.id, node.name)
                self._alive(node.id)
            case NodeReturned(node=node):
                self._alive(node)
            case NodeLost(node=node) if node in self._names:
                self._dead[node] = None
            case NodeLeft(node=node, reason=reason) if node in self._names and "SIGKILL" in reason:
                self._dead[node] = None  # its first process was killed, nobody told it to go
            case NodeEvicted(name=name):
                self._seen_to.update(node for node in self._dead if self._names[node] == name)
            case _:
                pass

    def _alive(self, node: str) -> None:
        self._dead.pop(node, None)
        self._seen_to.discard(node)

    def due(self) -> list[tuple[str, str]]:
        """Return the agents to be seen to, with the names of their nodes, in the order of these. None is returned twice."""
        found = [(node, self._names[node]) for node in self._dead if node not in self._seen_to]
        self._seen_to.update(self._dead)
        return sorted((each for each in found if self.is_alone(each[0])), key=lambda each: each[1])

    def is_alone(self, node: str) -> bool:
        """Whether an agent is dead, and no other one lives on its node."""
        if node not in self._dead:
            return False
        name = self._names[node]
        return all(other in self._dead for other, theirs in self._names.items() if theirs == name)
