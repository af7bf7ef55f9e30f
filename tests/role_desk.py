"""A book of nodes without a network, for tests: what a leader's nodes say to it, and what it tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from robust_run.launcher.model.code_events import CodeVersion
from robust_run.launcher.records.code.types import CodeFile, CodeTree
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.node_words import GONE_S, Offer, Order
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import JobState, Member, Node
from robust_run.orchestrator.model.words import Event, NodeGone, NodeOffered, StartMember
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.updates.shelf import Shelf

ROLLOUT = MemberName("rollout", 0)


class StubWorker:
    """A connection of a node, as the book sees it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: str | None = None

    def send(self, message: object) -> None:
        self.sent.append(message)

    def end(self, why: str = "") -> None:
        self.ended = why


class Desk:
    """A book of nodes, and what it told."""

    def __init__(self, gone_s: float) -> None:
        self.state = JobState(phase="going", members={ROLLOUT: Member(name=ROLLOUT)})
        self.told: list[Event] = []
        self.said: list[str] = []
        self.book = NodeBook(
            "run", "job", self.state, self.tell, lambda _, event: self.tell(event), self.said.append, order, gone_s
        )

    def tell(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, NodeOffered):
            self.state.nodes.setdefault(event.node, Node(event.slots, guard=event.guard))
        elif isinstance(event, NodeGone):
            self.state.nodes.pop(event.node, None)

    def connect(self, **more: Any) -> StubWorker:
        worker = StubWorker()
        known: dict[str, Any] = {
            "name": "b",
            "boot": "1",
            "guard": "g",
            "slots": 9,
            "devices": 0,
            "address": "10.0.0.2",
        }
        self.hear(worker, Offer(**{**known, **more}))
        return worker

    def hear(self, worker: StubWorker, message: object) -> None:
        self.book.hear(cast("Worker", worker), message)

    def went(self, worker: StubWorker) -> None:
        self.book.went(cast("Worker", worker))

    def gone(self) -> list[str]:
        return [event.node for event in self.told if isinstance(event, NodeGone)]

    def runs(self, standing: str = "running", serial: int = 1) -> None:
        member = self.state.members[ROLLOUT]
        member.standing, member.serial, member.nodes = standing, serial, ("b",)  # type: ignore[assignment]


def order(start: StartMember, name: str) -> Order:
    del name
    return Order(role=RoleSpec(name="rollout", command=("rollout.py",)), start=start)


def desk(story: Callable[[Desk], Any], gone_s: float = GONE_S) -> None:
    async def told() -> None:
        found = story(Desk(gone_s))
        if found is not None:
            await found

    asyncio.run(told())


def shelf_with_code(folder: Path) -> tuple[Shelf, CodeVersion]:
    """Return a store that has a version."""
    shelf = Shelf(str(folder))
    file = CodeFile(path="a.py", digest=shelf.store.put(b"A = 1\n"), size_bytes=6)
    return shelf, CodeVersion(number=1, tree=shelf.store.put_tree(CodeTree(files=(file,))))
