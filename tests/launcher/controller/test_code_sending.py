"""How nodes are given versions of the code: part by part, few at a time, and none that has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robust_run.launcher.control import frames
from robust_run.launcher.control.messages import CodeParts
from robust_run.launcher.controller.code.sending import AT_ONCE, MOST_UNREAD_BYTES, CodeSending
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.launcher.records.code.types import CodeFile, CodeTree

FILES = 5
SIZE_BYTES = 1 << 20


class Node:
    """Takes what it is sent, and reads it when it is told to."""

    def __init__(self) -> None:
        self.ended = ""
        self.backlog_bytes = 0
        self.got: list[CodeParts] = []

    def send_frame(self, frame: bytes) -> None:
        self.backlog_bytes += len(frame)
        message = frames.decode_from_controller(frame[4:])
        assert isinstance(message, CodeParts)
        self.got.append(message)

    @property
    def objects(self) -> int:
        return sum(len(each.parts.objects) for each in self.got)


class Turns:
    """What is to be done later."""

    def __init__(self) -> None:
        self.then: list[Callable[[], None]] = []

    def later(self, _: float, then: Callable[[], None]) -> None:
        self.then.append(then)

    def pass_one(self) -> bool:
        for then in [self.then.pop()] if self.then else []:
            then()
        return bool(self.then)


@pytest.fixture
def tree(tmp_path: Path) -> str:
    store = TreeStore(str(tmp_path))
    return store.put_tree(
        CodeTree(
            files=tuple(
                CodeFile(path=f"{name}.py", digest=store.put(bytes([name]) * SIZE_BYTES), size_bytes=SIZE_BYTES)
                for name in range(FILES)
            )
        )
    )


def test_a_node_gets_all_of_a_version_a_part_at_a_time(tmp_path: Path, tree: str) -> None:
    turns, node = Turns(), Node()
    CodeSending(str(tmp_path), turns.later).send(node, tree)
    assert len(node.got) == 1, "heartbeats pass between parts"
    while turns.pass_one():
        node.backlog_bytes = 0
    assert node.got[0].parts.manifest
    assert node.objects == FILES


def test_only_a_few_are_sent_to_at_the_same_time_and_all_get_it(tmp_path: Path, tree: str) -> None:
    turns, nodes = Turns(), [Node() for _ in range(3 * AT_ONCE)]
    sending = CodeSending(str(tmp_path), turns.later)
    for node in nodes:
        sending.send(node, tree)
    turns.pass_one()
    assert sum(bool(node.got) for node in nodes) == AT_ONCE
    while turns.pass_one():
        for node in nodes:
            node.backlog_bytes = 0
    assert [node.objects for node in nodes] == [FILES] * len(nodes)


def test_one_that_does_not_read_is_given_no_more_and_holds_nobody_up(tmp_path: Path, tree: str) -> None:
    turns, stuck, other = Turns(), Node(), Node()
    sending = CodeSending(str(tmp_path), turns.later)
    sending.send(stuck, tree)
    sending.send(other, tree)
    for _ in range(20):
        turns.pass_one()
        other.backlog_bytes = 0
    assert other.objects == FILES
    assert stuck.objects < FILES
    assert stuck.backlog_bytes <= MOST_UNREAD_BYTES + (3 << 20)
    stuck.ended = "gone"
    turns.pass_one()
    assert not turns.then, "nothing is left to do"


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    turns, node = Turns(), Node()
    CodeSending(str(tmp_path), turns.later).send(node, "0" * 64)
    while turns.pass_one():
        pass
    assert "is not in" in node.got[0].parts.missing
