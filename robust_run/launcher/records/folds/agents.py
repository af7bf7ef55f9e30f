"""Which agents a job has, and which of them are gone, from the lines of its journal. Pure."""

from __future__ import annotations

from robust_run.launcher.model.events import Event
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    JobStarted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
)


class Agents:
    """The agents of a job since its last requeue. One is known by its id: the next agent of a node has the node's name too."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Names of their nodes, in the order they joined."""
        self.gone: dict[str, bool] = {}
        """Those that are gone, and whether they died: fell silent, or were killed. The others were told to go."""
        self.restart = 0
        """How often the job had been requeued."""

    def take(self, event: Event | None) -> bool:
        """Take in an event; return whether it is a requeue: nodes of before may be other jobs' by now."""
        match event:
            case JobStarted(restart=restart) | ControllerResumed(restart=restart) if restart > self.restart:
                self.names, self.gone, self.restart = {}, {}, restart
                return True
            case NodeJoined(node=node):
                self.names.setdefault(node.id, node.name)
                self.gone.pop(node.id, None)
            case NodeReturned(node=node):
                self.gone.pop(node, None)
            case NodeLost(node=node) if node in self.names:
                self.gone[node] = True
            case NodeLeft(node=node, reason=reason) if node in self.names:
                self.gone[node] = "SIGKILL" in reason or self.gone.get(node, False)
            case _:
                pass
        return False
