"""What block servers of a node are told of other nodes."""

from __future__ import annotations

import threading

import pytest

from robust_run.launcher.agent.places.block_peers import Telling, told
from robust_run.mounts.holding import HolderReady
from robust_run.prefetch.server import control

BOTH = HolderReady(control_path="/image", laid_control_path="/laid")
IMAGE, LAID = HolderReady(control_path="/image"), HolderReady(laid_control_path="/laid")


@pytest.mark.parametrize(
    ("ready", "own", "said"),
    [
        (BOTH, "a:1,a:2", [("/image", ("a:1", "b:1"), "a:1"), ("/laid", ("a:2", "c:2"), "a:2")]),
        (IMAGE, "a:1,", [("/image", ("a:1", "b:1"), "a:1")]),
        (LAID, ",a:2", [("/laid", ("a:2", "c:2"), "a:2")]),
        (BOTH, "late:1,late:2", [("/image", ("a:1", "b:1"), "late:1"), ("/laid", ("a:2", "c:2"), "late:2")]),
        (HolderReady(), "", []),
    ],
)
def test_each_server_hears_of_those_that_give_the_same(
    ready: HolderReady, own: str, said: list[tuple[str, tuple[str, ...], str]]
) -> None:
    assert told(ready, ("a:1,a:2", "b:1", ",c:2"), own) == said


def test_who_starts_alone_is_told_so_and_waits_for_nobody() -> None:
    assert told(IMAGE, ("a:1",), "a:1") == [("/image", ("a:1",), "a:1")]


def test_a_list_that_was_overtaken_by_a_newer_one_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    is_asked, may_answer = threading.Event(), threading.Event()

    def ask(_path: str, request: control.AskPeers, *_: object) -> control.Done:
        heard.append(len(request.members))
        is_asked.set()
        assert may_answer.wait(60)
        return control.Done()

    monkeypatch.setattr(control, "ask", ask)
    before = set(threading.enumerate())
    telling = Telling()
    telling.tell(IMAGE, ("a:1", "b:1"), "a:1")
    assert is_asked.wait(60)
    telling.tell(IMAGE, ("a:1", "b:1", "c:1"), "a:1")
    telling.tell(IMAGE, ("a:1", "b:1", "c:1", "d:1"), "a:1")
    may_answer.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert heard == [2, 4]
