"""What other nodes had when they were asked, once for each list of members: what one has does not leave the origin again."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from robust_run.store.errors import StoreError
from robust_run.store.http_connections import Connections

#: So many others are asked, spread over the members; and so many that have a group are named.
MOST_ASKED, _MOST_NAMED = 16, 2
#: How long what is ours is not fetched ahead while they are asked.
LEARNING_S = 1.0
_LARGEST_ANSWER_BYTES = 1 << 20


def chosen(members: Sequence[str], own: str) -> list[str]:
    """Return whom to ask: of many, those after us, so that not all ask the same. Pure; `members` are sorted."""
    others = [*(each for each in members if each > own), *(each for each in members if each < own)]
    return others[:MOST_ASKED]


def encoded(has: Callable[[int], bool], groups: int) -> bytes:
    """Return which groups a node has all of: a bit each. Pure."""
    found = bytearray(-(-groups // 8))
    for group in range(groups):
        if has(group):
            found[group // 8] |= 1 << group % 8
    return bytes(found)


class HeldElsewhere:
    """Which of the others has what. Safe for threads."""

    def __init__(self) -> None:
        self._by_member: dict[str, bytes] = {}
        self._asking = 0
        self._lock = threading.Lock()

    @property
    def is_learning(self) -> bool:
        """Whether some have been asked and have not answered."""
        return self._asking > 0

    def learn(self, members: Collection[str], path: str, of: Callable[[str], Connections]) -> None:
        """Ask these, in threads. Returns at once."""
        with self._lock:
            self._by_member = {each: held for each, held in self._by_member.items() if each in members}
            self._asking += len(members)
        for member in members:
            threading.Thread(target=self._ask, args=(member, path, of), daemon=True).start()

    def _ask(self, member: str, path: str, of: Callable[[str], Connections]) -> None:
        try:
            with (
                suppress(StoreError),
                of(member).asking("GET", f"http://{member}/{path}", path, {}, None) as reply,
            ):
                size = int(reply.getheader("Content-Length", "0") or 0)
                if reply.status == http.client.OK and 0 < size <= _LARGEST_ANSWER_BYTES:
                    buffer = bytearray(size)
                    if reply.fill(memoryview(buffer)) == size:
                        with self._lock:
                            self._by_member[member] = bytes(buffer)
        finally:
            with self._lock:
                self._asking -= 1

    def have(self, group: int) -> tuple[str, ...]:
        """Return some of the nodes that had a group."""
        at, bit = group // 8, 1 << group % 8
        with self._lock:
            found = (each for each, held in self._by_member.items() if at < len(held) and held[at] & bit)
            return tuple(each for each, _ in zip(found, range(_MOST_NAMED), strict=False))
