"""Tells the core a story: what happens to a job, a line each, and what the core does about it."""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import Action, EndAttempt, HostEvicted, RecordIncident, StartAttempt
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted, Event, RankExited, StoreOpened, Tick
from robust_run.launcher.model.job import NodeInfo, Placement, Progress, RankEvidence
from robust_run.launcher.model.node_events import (
    JobStarted,
    NodeEvicted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReadmitted,
    NodeReturned,
    NodeToldToLeave,
)
from robust_run.launcher.records.folds.evicted import Evicted
from robust_run.launcher.records.journal import JournalEntry

PEER = Finding(kind="peer_connection", line="Connection closed by peer", exception="RuntimeError")
BUG = Finding(
    kind="exception", line="ValueError: boom", exception="ValueError", message="boom", frame="train.py:3 in f"
)
TYPO = Finding(kind="exception", line="NameError: x", exception="NameError", message="x", heals=False)

ONE_NODE = CorePolicy(
    max_restarts=3, progress_after_s=600, restart_grace_s=3, shutdown_timeout_s=30, patience_s=0.5, join_timeout_s=600
)


def evidence(rank: int, exit_code: int | None, at_s: float = 1.0, **more: object) -> RankEvidence:
    """Return what is known of a rank that ended."""
    return RankEvidence(rank=rank, pid=100 + rank, exit_code=exit_code, exited_at_s=at_s, **more)  # type: ignore[arg-type]


def told_to_end(rank: int, at_s: float, exit_code: int = -15) -> RankEvidence:
    """Return what is known of a rank that we ended."""
    return evidence(rank, exit_code, at_s, signalled_at_s=at_s - 0.1)


class Story:
    """Feeds events to the core and remembers where it stands. A node's id is its host name unless said otherwise."""

    def __init__(self, **policy: object) -> None:
        self.policy = msgspec.structs.replace(ONE_NODE, **policy)
        self.state = JobState()
        self.now_s = 0.0
        self.told: list[tuple[Event, float]] = []
        self.journal: list[JournalEntry] = []
        self._evicted = Evicted()

    def happens(self, event: Event, after_s: float = 0.0) -> list[Any]:
        """Return what the core does about an event, but for what it only puts on record of evictions: that is checked here."""
        self.now_s += after_s
        self.told.append((event, self.now_s))
        state, actions = step(self.policy, self.state, event, self.now_s)
        assert state is self.state
        lines = [JournalEntry(at=0.0, mono=self.now_s, event=event)]
        lines += [JournalEntry(at=0.0, mono=self.now_s, action=action) for action in actions]
        for line in lines:
            self._evicted.take(line)
        self.journal += lines
        assert self._evicted.now.keys() == self.state.evicted.keys(), "the journal tells who is evicted"
        return [action for action in actions if not isinstance(action, HostEvicted)]

    # --- nodes

    def joins(self, name: str, after_s: float = 0.0, **more: object) -> list[Any]:
        """A node joins, with two workers."""
        info = NodeInfo(**{"id": name, "name": name, "nproc": 2, **more})  # type: ignore[arg-type]
        return self.happens(NodeJoined(node=info), after_s)

    def is_lost(self, node: str, after_s: float = 0.0, silent_s: float = 3.5) -> list[Any]:
        """A node has been silent for too long."""
        return self.happens(NodeLost(node=node, silent_s=silent_s), after_s)

    def returns(self, node: str, after_s: float = 0.0) -> list[Any]:
        """A node connects again."""
        return self.happens(
            NodeReturned(node=node, attempt=self.state.attempt if node in self.state.places else -1), after_s
        )

    def leaves(self, node: str, after_s: float = 0.0) -> list[Any]:
        """A node goes in good order."""
        return self.happens(NodeLeft(node=node, reason="maintenance"), after_s)

    def is_told(self, node: str, after_s: float = 0.0) -> list[Any]:
        """A node is told to leave (SIGTERM), and goes a moment later."""
        return self.happens(NodeToldToLeave(node=node, signal=15), after_s)

    def evicts(self, name: str, after_s: float = 0.0) -> list[Any]:
        """An operator takes a host out."""
        return self.happens(NodeEvicted(name=name, reason="bad memory"), after_s)

    def readmits(self, name: str, after_s: float = 0.0) -> list[Any]:
        """An operator takes a host back."""
        return self.happens(NodeReadmitted(name=name), after_s)

    # --- an attempt

    def opens(self) -> list[Any]:
        """The store is open; return what follows, the order to start."""
        node = self.state.layout[0].node
        return self.happens(StoreOpened(attempt=self.state.attempt, node=node, address="10.0.0.1", port=29500))

    def starts(self) -> None:
        """The attempt that is being opened runs on all its nodes."""
        self.opens()
        for placement in self.state.layout:
            self.node_started(placement.node)

    def node_started(self, node: str) -> list[Any]:
        """A node says that all its workers run."""
        return self.happens(AttemptStarted(attempt=self.state.attempt, node=node, pids=(1, 2), port=29500))

    def exits(
        self, rank: int, code: int, finding: Finding | None = None, after_s: float = 0.0, *, had_ended: bool = False
    ) -> list[Any]:
        """A worker ends by itself."""
        exited = RankExited(attempt=self.state.attempt, rank=rank, exit_code=code, finding=finding, had_ended=had_ended)
        return self.happens(exited, after_s)

    def ends(self, node: str, *ranks: RankEvidence, after_s: float = 0.0, **more: object) -> list[Any]:
        """A node has ended the attempt; without evidence given, its workers ended because they were told to."""
        placement = self.place(node)
        ordered = tuple(told_to_end(placement.first_rank + each, self.now_s + 0.2) for each in range(placement.nproc))
        progress = Progress(
            steps=more.pop("steps", None),  # type: ignore[arg-type]
            lived_s=more.pop("lived_s", 1.0),  # type: ignore[arg-type]
        )
        event = AttemptEnded(
            attempt=self.state.attempt,
            node=node,
            started_at_s=0.0,
            ranks=ranks or ordered,
            progress=progress,
            **more,  # type: ignore[arg-type]
        )
        return self.happens(event, after_s)

    def all_end(self) -> list[Any]:
        """Every node that was told to has ended the attempt; return what follows from the last one."""
        last: list[Any] = []
        for placement in self.state.layout:
            if placement.node in self.state.unended:
                last = self.ends(placement.node)
        return last

    # --- questions

    def place(self, node: str) -> Placement:
        """Return the place of a node in the newest attempt."""
        return next(placement for placement in self.state.layout if placement.node == node)

    @property
    def world(self) -> list[str]:
        """Host names of the newest attempt, by group rank."""
        return [self.state.members[placement.node].info.name for placement in self.state.layout]


def gathering(fewest: int, most: int, **policy: object) -> Story:
    """Return the story of a job that waits for its first nodes."""
    story = Story(**{"fewest": fewest, "most": most, "many": True, "last_call_s": 30, **policy})
    story.happens(JobStarted())
    return story


def one_node(nproc: int = 2, **policy: object) -> Story:
    """Return the story of a job on the node `here`, whose workers run."""
    story = Story(**policy)
    story.joins("here", nproc=nproc)
    story.happens(JobStarted())
    story.starts()
    return story


def several_nodes(*names: str, **policy: object) -> Story:
    """Return the story of a job on these nodes, whose workers run."""
    story = Story(**{"fewest": len(names), "most": len(names), "many": True, "last_call_s": 30, **policy})
    story.happens(JobStarted())
    for name in names:
        story.joins(name)
    if story.state.phase == "gathering":
        story.happens(Tick(), after_s=30)
    story.starts()
    return story


def ending(attempt: int = 0) -> EndAttempt:
    """Return how an attempt is ended so that another can follow."""
    return EndAttempt(attempt=attempt, signal=15, grace_s=3)


def kinds(actions: list[Action]) -> list[type]:
    """Return what kinds of action these are."""
    return [type(action) for action in actions]


def incident_of(actions: list[Action]) -> RecordIncident:
    """Return the incident among these."""
    (incident,) = (action for action in actions if isinstance(action, RecordIncident))
    return incident


def start_of(actions: list[Action]) -> StartAttempt:
    """Return the order to start among these."""
    (order,) = (action for action in actions if isinstance(action, StartAttempt))
    return order
