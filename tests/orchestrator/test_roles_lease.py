"""How long what runs on a node may run, and when its leader takes it for gone: in that order, whoever is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.control.code_transfer import parts_of
from robust_run.launcher.core import code_ledger
from robust_run.launcher.model.code_events import CodeVersion, Ledger
from robust_run.launcher.records.code.types import CodeFile, CodeTree
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.names import MemberName
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.nodes.lease import NodeLease
from robust_run.orchestrator.nodes.words import (
    GONE_S,
    KILL_S,
    LEASE_S,
    Beat,
    CodeParts,
    CodeWanted,
    Happened,
    LauncherNow,
    Leaving,
    NotYet,
    Offer,
    Order,
    StopOrder,
    UpdateOrder,
)
from robust_run.orchestrator.state import JobState, Member, Node
from robust_run.orchestrator.updates.shelf import Shelf
from robust_run.orchestrator.updates.words import CodeSeen, RoleCode, UpdateMember
from robust_run.orchestrator.words import (
    Event,
    NodeGone,
    NodeOffered,
    RoleSpec,
    StartMember,
    WorldEnded,
)

ROLLOUT = MemberName("rollout", 0)


def test_a_node_ends_what_runs_there_and_then_kills_it() -> None:
    lease = NodeLease(100.0)
    assert [lease.due(at_s) for at_s in (100.0, 119.9, 120.0, 124.9, 125.0, 500.0)] == [
        "",
        "",
        "end",
        "end",
        "kill",
        "kill",
    ]
    lease.renewed(110.0)
    assert lease.due(125.0) == ""


def test_an_old_answer_that_is_read_late_renews_nothing() -> None:
    """A process that was stopped for a minute finds answers in its socket."""
    lease = NodeLease(0.0)
    lease.renewed(30.0)
    lease.renewed(1.0)
    assert (lease.until_s, lease.due(90.0)) == (30.0 + LEASE_S + KILL_S, "kill")


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20))
def test_whoever_is_late_the_lease_is_over_before_the_leader_takes_the_node_for_gone(
    beats: list[tuple[float, float, float]],
) -> None:
    """Each sign of life: how long after the one before it was sent, how late the leader took it in, how late the answer was."""
    sent_s, lease, heard_s = 0.0, NodeLease(0.0), 0.0
    for pause_s, late_s, answer_late_s in beats:
        sent_s += pause_s
        if sent_s + late_s >= heard_s + GONE_S:
            break  # it was taken for gone: later signs are not answered
        heard_s = max(heard_s, sent_s + late_s)
        del answer_late_s  # however late: what it renews is told from when its question was sent
        lease.renewed(sent_s)
    assert lease.until_s <= heard_s + LEASE_S + KILL_S < heard_s + GONE_S


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


def test_a_connection_that_breaks_says_nothing_and_the_node_comes_back() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        first = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.went(first)
        assert desk.gone() == []
        again = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        assert again.ended is None
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == [], "it still runs there"

    desk(story)


def test_one_that_comes_back_takes_the_place_of_its_own_old_connection() -> None:
    def story(desk: Desk) -> None:
        first, again = desk.connect(), desk.connect()
        assert first.ended is not None and again.ended is None
        desk.hear(first, Beat(sent_s=1.0))
        desk.hear(again, Beat(sent_s=2.0))
        assert (first.sent, again.sent) == ([], [Beat(sent_s=2.0)])

    desk(story)


def test_another_machine_of_the_same_name_is_refused_while_the_first_lives() -> None:
    def story(desk: Desk) -> None:
        first, other = desk.connect(), desk.connect(boot="2", guard="other")
        assert "is here already" in (other.ended or "") and first.ended is None
        assert desk.gone() == []

    desk(story)


def test_a_guard_that_is_another_waits_until_what_the_first_started_cannot_run_any_more() -> None:
    """It knows nothing of launchers of the one before, which may take half a minute to end."""

    async def later(desk: Desk) -> None:
        desk.runs()
        desk.went(desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),)))
        other = desk.connect(boot="2", guard="other")
        assert isinstance(other.sent[0], NotYet) and "may not have ended" in other.sent[0].why
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == []
        await asyncio.sleep(0.2)
        assert desk.gone() == ["b"]
        assert desk.connect(boot="2", guard="other").ended is None

    desk(later, 0.05)


def test_signs_of_life_keep_it_and_silence_does_not() -> None:
    async def later(desk: Desk) -> None:
        worker = desk.connect()
        for number in range(8):
            await asyncio.sleep(0.05)
            desk.hear(worker, Beat(sent_s=float(number)))
        assert desk.gone() == []
        while not desk.gone():
            await asyncio.sleep(0.05)
        assert "silent" in (worker.ended or "")

    desk(later, 0.3)


def test_what_happened_is_taken_in_once_and_a_new_process_counts_anew() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        ended = WorldEnded(member=ROLLOUT, serial=1, code=0)
        worker = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        for _ in range(2):
            desk.hear(worker, Happened(number=1, event=ended))
        assert desk.told.count(ended) == 1
        desk.went(worker)
        again = desk.connect(boot="2", launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.hear(again, Happened(number=1, event=ended))
        assert desk.told.count(ended) == 2

    desk(story)


def test_one_that_leaves_is_gone_with_its_connection_and_its_members_have_not_failed() -> None:
    def story(desk: Desk) -> None:
        desk.runs()
        worker = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        desk.hear(worker, Leaving(why="it was sent SIGTERM"))
        desk.hear(worker, Happened(number=1, event=WorldEnded(member=ROLLOUT, serial=1, code=143)))
        assert [event for event in desk.told if isinstance(event, WorldEnded)] == []
        desk.went(worker)
        assert desk.gone() == ["b"]

    desk(story)


def test_both_agree_on_what_runs_when_a_node_comes() -> None:
    def story(desk: Desk) -> None:
        desk.runs("starting", serial=2)
        old = LauncherNow(member=ROLLOUT, serial=1)
        worker = desk.connect(launchers=(old,))
        starts = [each.start.serial for each in worker.sent if isinstance(each, Order)]
        stops = [each.stop.serial for each in worker.sent if isinstance(each, StopOrder)]
        assert (starts, stops) == ([2], [1]), "the order that was lost, and a launcher of before"

    desk(story)


def test_a_node_above_the_most_waits_until_another_is_gone() -> None:
    def story(desk: Desk) -> None:
        desk.book.most = 1
        first, second = desk.connect(), desk.connect(name="c", boot="2", guard="h")
        assert [type(each) for each in second.sent] == [NotYet]
        desk.hear(first, Leaving(why="it was sent SIGTERM"))
        desk.went(first)
        third = desk.connect(name="c", boot="2", guard="h")
        assert (third.sent, third.ended) == ([], None)

    desk(story)


def test_code_comes_before_what_needs_it_and_once(tmp_path: Path) -> None:
    def story(desk: Desk) -> None:
        shelf, version = shelf_with_code(tmp_path)
        desk.book.shelf = shelf
        desk.runs("starting")
        desk.state.codes["rollout"] = RoleCode(ledger=code_ledger.captured(Ledger(), version, 0))
        desk.state.members[ROLLOUT].version = 1
        node = desk.connect()
        *parts, last = node.sent
        assert {type(each) for each in parts} == {CodeParts}
        assert isinstance(last, Order) and last.start.code == version
        order_again = UpdateMember(member=ROLLOUT, serial=1, version=version)
        desk.book.update("b", order_again)
        assert node.sent[len(parts) + 1 :] == [UpdateOrder(order=order_again)], "it has the code"

    desk(story)


def test_an_update_that_a_node_may_not_have_heard_is_told_again_when_it_is_back() -> None:
    def story(desk: Desk) -> None:
        version = CodeVersion(number=1, tree="")
        desk.runs()
        desk.state.codes["rollout"] = RoleCode(ledger=code_ledger.captured(Ledger(), version, 0))
        member = desk.state.members[ROLLOUT]
        member.ordered, member.ordered_now = 1, True
        node = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        assert node.sent == [UpdateOrder(order=UpdateMember(member=ROLLOUT, serial=1, version=version, now=True))]
        member.fate = "trusted"
        desk.went(node)
        assert desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),)).sent == []

    desk(story)


def test_what_a_launcher_elsewhere_has_captured_counts_when_the_code_is_here(tmp_path: Path) -> None:
    def story(desk: Desk) -> None:
        theirs, version = shelf_with_code(tmp_path / "theirs")
        desk.book.shelf = Shelf(str(tmp_path / "ours"))
        node = desk.connect()
        seen = CodeSeen(member=ROLLOUT, serial=1, version=version)
        desk.hear(node, Happened(number=1, event=seen))
        assert CodeWanted(tree=version.tree) in node.sent
        assert seen not in desk.told
        for parts in parts_of(theirs.store, version.tree):
            desk.hear(node, CodeParts(parts=parts))
        assert desk.told.count(seen) == 1
        assert desk.book.shelf.store.has(version.tree)

    desk(story)


def shelf_with_code(folder: Path) -> tuple[Shelf, CodeVersion]:
    """Return a store that has a version."""
    shelf = Shelf(str(folder))
    file = CodeFile(path="a.py", digest=shelf.store.put(b"A = 1\n"), size_bytes=6)
    return shelf, CodeVersion(number=1, tree=shelf.store.put_tree(CodeTree(files=(file,))))
