"""Code between nodes: before what needs it, and where another may have to lead on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from role_desk import ROLLOUT, Desk, desk, shelf_with_code

from robust_run.clock import SystemClock
from robust_run.launcher.control.code_transfer import parts_of
from robust_run.launcher.core import code_ledger
from robust_run.launcher.model.code_events import CodeVersion, Ledger
from robust_run.launcher.operator.views.code_words import UpdateWish
from robust_run.orchestrator.model.node_words import (
    CodeKept,
    CodeParts,
    CodeWanted,
    Happened,
    LauncherNow,
    Order,
    Taken,
    UpdateOrder,
)
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.update_words import CodeLost, CodeSeen, RoleCode, UpdateAsked, UpdateMember
from robust_run.orchestrator.model.words import WorldEnded, WorldRuns
from robust_run.orchestrator.nodes.carrier import Carrier
from robust_run.orchestrator.updates.desk import CodeDesk
from robust_run.orchestrator.updates.shelf import Shelf
from robust_run.roles.words import UpdateCall


def test_code_comes_before_what_needs_it_and_once(tmp_path: Path) -> None:
    def story(desk: Desk) -> None:
        shelf, version = shelf_with_code(tmp_path)
        desk.book.code.shelf = shelf
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
        desk.book.code.shelf = Shelf(str(tmp_path / "ours"))
        node = desk.connect()
        seen = CodeSeen(member=ROLLOUT, serial=1, version=version)
        desk.hear(node, Happened(number=1, event=seen))
        assert CodeWanted(tree=version.tree) in node.sent
        assert seen not in desk.told
        for parts in parts_of(theirs.store, version.tree):
            desk.hear(node, CodeParts(parts=parts))
        assert desk.told.count(seen) == 1
        assert desk.book.code.shelf.store.has(version.tree)

    desk(story)


def of_version(desk: Desk, version: CodeVersion, standing: str = "starting") -> None:
    """A member was given a version of its role's code."""
    desk.runs(standing)
    desk.state.codes["rollout"] = RoleCode(ledger=code_ledger.captured(Ledger(), version, 0))
    desk.state.members[ROLLOUT].version = 1


def test_a_leader_that_lacks_code_asks_those_who_may_have_it_and_starts_nobody_without(tmp_path: Path) -> None:
    """It leads since a moment, and the code is on another node's disk."""

    async def story(desk: Desk) -> None:
        theirs, version = shelf_with_code(tmp_path / "theirs")
        desk.book.code.shelf = Shelf(str(tmp_path / "ours"))
        of_version(desk, version)
        node = desk.connect()
        assert node.sent == [CodeWanted(tree=version.tree)]
        later = desk.connect(name="c", boot="2", guard="h")
        assert later.sent == [CodeWanted(tree=version.tree)]
        for parts in parts_of(Shelf(str(tmp_path / "ours")).store, version.tree):
            desk.hear(node, CodeParts(parts=parts))  # it has nothing of it
        assert (node.sent[1:], desk.said) == ([], [])
        for parts in parts_of(theirs.store, version.tree):
            desk.hear(later, CodeParts(parts=parts))
        *code, last = node.sent[1:]
        assert {type(each) for each in code} == {CodeParts}
        assert isinstance(last, Order) and last.start.code == version

    desk(story)


def test_what_was_told_to_end_while_its_code_was_looked_for_is_not_started(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        theirs, version = shelf_with_code(tmp_path / "theirs")
        desk.book.code.shelf = Shelf(str(tmp_path / "ours"))
        of_version(desk, version)
        node = desk.connect()
        desk.state.members[ROLLOUT].standing = "stopping"
        for parts in parts_of(theirs.store, version.tree):
            desk.hear(node, CodeParts(parts=parts))
        assert [each for each in node.sent if isinstance(each, Order)] == []
        assert [event.serial for event in desk.told if isinstance(event, WorldEnded)] == [1]

    desk(story)


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_code_that_no_node_has_any_more_is_given_up_and_that_is_said(tmp_path: Path, is_rolled_back: bool) -> None:
    """A version that has not proven itself is rolled back; without any, members start with what lies in the folder."""

    async def story(desk: Desk) -> None:
        _, version = shelf_with_code(tmp_path / "theirs")
        desk.book.code = Carrier(desk.book._send, desk.book.here, desk.said.append, fetch_s=0.01)
        desk.book.code.shelf = Shelf(str(tmp_path / "ours"))
        of_version(desk, version)
        if is_rolled_back:
            record = msgspec.structs.replace(desk.state.codes["rollout"].ledger.records[0], fate="rolled_back")
            desk.state.codes["rollout"].ledger = Ledger(records=(record,))
        desk.state.members[ROLLOUT].version = 1
        node = desk.connect()
        while not any(isinstance(event, CodeLost) for event in desk.told):
            await asyncio.sleep(0.01)
        orders = [each for each in node.sent if isinstance(each, Order)]
        ended = [event.code for event in desk.told if isinstance(event, WorldEnded)]
        assert (len(orders), ended) == ((0, [-9]) if is_rolled_back else (1, []))
        assert is_rolled_back or "is on no node that is here" in desk.said[-1]

    desk(story)


def test_what_a_launcher_has_captured_is_told_again_until_its_code_is_here(tmp_path: Path) -> None:
    """The leader that heard it first may be lost before it has the code."""

    def story(desk: Desk) -> None:
        theirs, version = shelf_with_code(tmp_path / "theirs")
        desk.book.code.shelf = Shelf(str(tmp_path / "ours"))
        desk.runs()
        node = desk.connect(launchers=(LauncherNow(member=ROLLOUT, serial=1),))
        runs, seen = WorldRuns(member=ROLLOUT, serial=1), CodeSeen(member=ROLLOUT, serial=1, version=version)
        for number, event in enumerate((runs, seen, runs), 1):
            desk.hear(node, Happened(number=number, event=event))
        assert [each.number for each in node.sent if isinstance(each, Taken)] == [1, 1, 1]
        for parts in parts_of(theirs.store, version.tree):
            desk.hear(node, CodeParts(parts=parts))
        assert [each.number for each in node.sent if isinstance(each, Taken)][3:] == [3]
        assert desk.told.count(seen) == 1

    desk(story)


def test_voters_have_the_code_that_counts_for_when_they_lead(tmp_path: Path) -> None:
    def story(desk: Desk) -> None:
        shelf, version = shelf_with_code(tmp_path)
        desk.book.code.shelf = shelf
        voter, other = desk.connect(), desk.connect(name="c", boot="2", guard="h")
        for _ in range(2):
            desk.book.code.keep([version.tree, ""], ["b"])
        assert (voter.sent, other.sent) == ([CodeKept(trees=(version.tree,))], [])
        desk.hear(voter, CodeWanted(tree=version.tree))
        assert {type(each) for each in voter.sent[1:]} == {CodeParts}
        desk.went(voter)
        assert desk.connect(boot="3").sent == [CodeKept(trees=(version.tree,))]

    desk(story)


def test_an_update_whose_code_lies_on_another_node_s_disk_is_fetched_and_then_taken(tmp_path: Path) -> None:
    """Who asks for it need not sit where the leader is now."""

    async def story(nodes: Desk) -> None:
        theirs, version = shelf_with_code(tmp_path / "theirs")
        nodes.book.code.shelf = ours = Shelf(str(tmp_path / "ours"))
        node = nodes.connect()
        first = CodeVersion(number=1, tree="")
        nodes.state.codes["rollout"] = RoleCode(ledger=code_ledger.captured(Ledger(), first, 0))
        spec = RolesSpec(name="job", roles=(RoleSpec(name="rollout", command=("rollout.py",)),))
        code = CodeDesk(spec, nodes.state, ours.store, SystemClock(), nodes.tell)
        code.fetch = lambda tree: nodes.book.code.once_here(tree, lambda _: None)
        wish = UpdateWish(version=msgspec.structs.replace(version, number=2, parents=(1,)))
        call = UpdateCall(number=1, role="rollout", wish=msgspec.json.encode(wish))
        assert [code.answer(call).is_coming for _ in range(3)] == [True] * 3
        assert node.sent == [CodeWanted(tree=version.tree)], "once"
        for parts in parts_of(theirs.store, version.tree):
            nodes.hear(node, CodeParts(parts=parts))
        taken = code.answer(call)
        assert (taken.is_coming, taken.error) == (False, "")
        assert [event.version.tree for event in nodes.told if isinstance(event, UpdateAsked)] == [version.tree]

    desk(story)
