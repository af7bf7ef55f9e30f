"""Distribution of code versions to nodes that lack them: few nodes at a time, part by part, so that heartbeats pass between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from robust_run.launcher.control import frames
from robust_run.launcher.control.code_transfer import parts_of
from robust_run.launcher.control.messages import CodeParts
from robust_run.launcher.records.code.tree_store import TreeStore

#: Nodes that are sent to at the same time; the others wait for their turn.
AT_ONCE = 8
#: A node that has so much unread is given nothing more until it has read.
MOST_UNREAD_BYTES = 4 << 20
#: Between two parts for a node.
TURN_S = 0.005


class CodeReceiver(Protocol):
    """As much of a `control.peer.Peer` as is used."""

    @property
    def ended(self) -> str: ...  # noqa: D102
    @property
    def backlog_bytes(self) -> int: ...  # noqa: D102
    def send_frame(self, frame: bytes) -> None: ...  # noqa: D102


class CodeSending:
    """What is on its way to whom. The frames of a version are made once for all who wait for it."""

    def __init__(self, folder: str, later: Callable[[float, Callable[[], None]], object]) -> None:
        """`folder`: the store of versions."""
        self._store = TreeStore(folder)
        self._later = later
        self._waiting: deque[tuple[CodeReceiver, str]] = deque()
        self._going: list[tuple[CodeReceiver, Iterator[bytes]]] = []
        self._made: dict[str, _Frames] = {}

    def send(self, peer: CodeReceiver, tree: str) -> None:
        """Have a node get a version, soon."""
        is_idle = not self._waiting and not self._going
        self._waiting.append((peer, tree))
        if is_idle:
            self._turn()

    def _turn(self) -> None:
        while self._waiting and len(self._going) < AT_ONCE:
            peer, tree = self._waiting.popleft()
            made = self._made.setdefault(tree, _Frames(self._store, tree))
            self._going.append((peer, iter(made)))
        self._going = [(peer, left) for peer, left in self._going if self._goes_on(peer, left)]
        if self._waiting or self._going:
            self._later(TURN_S, self._turn)
        else:
            self._made.clear()

    @staticmethod
    def _goes_on(peer: CodeReceiver, left: Iterator[bytes]) -> bool:
        if peer.ended:
            return False
        if peer.backlog_bytes > MOST_UNREAD_BYTES:
            return True
        frame = next(left, None)
        if frame is not None:
            peer.send_frame(frame)
        return frame is not None


class _Frames:
    """The frames of one version, made when the first node needs them and kept for the next."""

    def __init__(self, store: TreeStore, tree: str) -> None:
        self._parts = parts_of(store, tree)
        self._frames: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        index = 0
        while True:
            if index == len(self._frames):
                parts = next(self._parts, None)
                if parts is None:
                    return
                self._frames.append(frames.encode(CodeParts(parts=parts)))
            yield self._frames[index]
            index += 1
