"""Where a node looks for the leader. Pure but for what it is told.

At first that is where all nodes meet. A job of three nodes or more tells each of them who the voters are; from then on one of
these leads. A voter hears from the election who; any other node asks them in turn, and who does not lead hangs up."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.orchestrator.model.node_words import Founded, NodeWelcome, Several
from robust_run.orchestrator.model.succession_words import Voter


class Finding:
    """Of one node. This one is for a job that only one node leads: `succession.house` has the other."""

    folder = ""
    """Run directory of this node, where it is known."""
    address = ""
    """Where this node is reached, if it is not the address that it comes from."""
    port = 0
    """Where it listens; 0: it does not."""
    connect_s = 10.0
    leaves = ""
    """Why this node leaves, where an earlier process of it was told to."""

    def __init__(self, meeting: Several) -> None:
        self._meeting = meeting
        self.guard_said: list[object] = []
        """What the guard has said already."""

    def next(self) -> tuple[str, int] | None:
        """Return where to look now; None: nowhere yet."""
        return self._meeting.host, self._meeting.port

    def places(self) -> str:
        """Return where it was looked, for people."""
        return f"{self._meeting.host}:{self._meeting.port}"

    def check(self, welcome: NodeWelcome, address: str) -> None:
        """Somebody leads there. Raises ConnectionResetError where that is not to be followed."""

    def founded(self, founded: Founded) -> None:
        """The voters are known."""

    def opened(self, folder: str) -> None:
        """This node has a run directory."""

    def will_leave(self, why: str) -> None:
        """This node was told to leave."""

    def leads_here(self) -> bool:
        """Whether this node leads the job, and says itself how it ended."""
        return False

    time_is_over: Callable[[], None] | None = None
    """Is called when the job's time is over; None: that is the matter of another node."""

    def signalled(self, number: int, by: str) -> bool:  # noqa: ARG002
        """The guard was told to end; whether that is the job's matter, not only this node's."""
        return False


class Rounds:
    """The voters in turn, the one first that is said to lead."""

    def __init__(self) -> None:
        self.voters: tuple[Voter, ...] = ()
        self._turn = 0

    def next(self, leader: str | None) -> tuple[str, int] | None:
        """Return where to look. `leader`: who is said to lead; None: this node is not told."""
        if leader is None and self.voters:
            self._turn += 1
            voter = self.voters[self._turn % len(self.voters)]
            return voter.address, voter.port
        found = next((each for each in self.voters if each.name == leader), None)
        return (found.address, found.port) if found is not None else None

    def places(self) -> str:
        """Return all of them, for people."""
        return ", ".join(f"{each.address}:{each.port}" for each in self.voters)
