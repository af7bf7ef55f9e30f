"""What nodes tell each other while they write a generation: small files in the storage that they write to, and nothing else.

Who waits for others waits as long as one of them goes on: each leaves a sign now and then. One that fails says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.meetings import KINDS
from robust_run.decoders import json_decoder
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.types import Store

SIGN_S = 5.0
_FIRST_LOOK_S, _LOOK_S, _LINGER_S = 0.05, 1.0, 3.0
_MOST_BYTES = 1 << 30
#: Others of a job that ends come within seconds. After so long without news it is asked whether they need come at all.
UNLESS_S = 5.0
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class NotNeededError(Exception):
    """Nobody need be waited for any more."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What every file says first: whose it is."""

    ranks: tuple[int, ...]
    """Of the node that wrote it."""
    content: msgspec.Raw


class Exchange:
    """One node's notes, and those of others, in one folder of a store."""

    def __init__(
        self,
        store: Store,
        folder: str,
        ranks: Sequence[int],
        world_size: int,
        wait_s: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._folder = store, folder
        self._ranks, self._world_size, self._wait_s = tuple(ranks), world_size, wait_s
        self._now_s, self._sleep = now_s, sleep
        self._signed_at_s = -SIGN_S

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody else."""
        return len(self._ranks) == self._world_size

    def begin(self) -> None:
        """Remove what this node told the last time that the same was tried. Raises StoreError."""
        for kind in () if self.is_alone else KINDS:
            self._store.remove(self._path(kind))

    def tell(self, kind: str, content: Any) -> None:
        """Tell the others. Raises StoreError."""
        if not self.is_alone:
            note = Note(ranks=self._ranks, content=msgspec.Raw(msgspec.json.encode(content)))
            self._store.write_all(self._path(kind), msgspec.json.encode(note), durable=False)

    def sign(self, done_bytes: int) -> None:
        """Show the others that we go on; seldom, however often this is called. Never raises."""
        now_s = self._now_s()
        if not self.is_alone and now_s - self._signed_at_s >= SIGN_S:
            self._signed_at_s = now_s
            try:
                self._store.write_all(self._path("sign"), f"{done_bytes} {now_s}".encode(), durable=False)
            except StoreError:
                return

    def hear(self, kind: str, what: type[_Kind], mine: _Kind, unless: Callable[[], bool] | None = None) -> list[_Kind]:
        """Return what each node has told, this one's among it. `unless`: whether it is not needed, asked where no news comes.

        Raises:
            NotNeededError: As `unless` says.
            CheckpointError: Another node has failed, or none of those that are missing shows a sign of going on.
            StoreError: The storage failed.
        """
        heard: dict[str, tuple[tuple[int, ...], _Kind]] = {self._path(kind): (self._ranks, mine)}
        seen: dict[str, bytes] = {}
        since_s, look_s = self._now_s(), _FIRST_LOOK_S
        ask_at_s = since_s + UNLESS_S
        while True:
            missing = set(range(self._world_size)) - {rank for ranks, _ in heard.values() for rank in ranks}
            if not missing:
                return [said for _, said in sorted(heard.values(), key=lambda each: each[0])]
            if self._has_news(kind, what, heard, seen):
                since_s, look_s = self._now_s(), _FIRST_LOOK_S
                ask_at_s = since_s + UNLESS_S
            elif unless is not None and self._now_s() >= ask_at_s:
                if unless():
                    raise NotNeededError
                ask_at_s = self._now_s() + UNLESS_S
            elif self._now_s() - since_s > self._wait_s:
                raise CheckpointError(f"nothing was heard of the node of rank {min(missing)} for {self._wait_s:.0f} s")
            else:
                self._sleep(look_s)
                look_s = min(_LOOK_S, look_s * 1.5)

    def let_others_look(self) -> None:
        """Wait until those who wait for what is there have had time to see it."""
        self._sleep(_LINGER_S)

    def forget(self) -> None:
        """Remove all notes. Raises StoreError."""
        for name in [] if self.is_alone else self._names():
            self._store.remove(f"{self._folder}/{name}")

    def _has_news(
        self, kind: str, what: type[_Kind], heard: dict[str, tuple[tuple[int, ...], _Kind]], seen: dict[str, bytes]
    ) -> bool:
        is_news = False
        for name in self._names():
            path = f"{self._folder}/{name}"
            told, _, whose = name.partition("-")
            if told == kind and path not in heard:
                note = _decoded(self._store.read_all(path, _MOST_BYTES), Note)
                heard[path] = (note.ranks, _decoded(bytes(note.content), what))
                is_news = True
            elif told == "failed" and whose != self._name:
                raise CheckpointError(f"the node of rank {int(whose)} gave it up")
            elif told == "sign" and whose != self._name:
                content = self._store.read_all(path, _MOST_BYTES)
                is_news = is_news or seen.get(path) != content
                seen[path] = content
        return is_news

    def _names(self) -> list[str]:
        try:
            names = [entry.name for entry in self._store.list(self._folder)]
        except NotFound:
            return []
        return [name for name in names if name.partition("-")[0] in KINDS]

    @property
    def _name(self) -> str:
        return f"{min(self._ranks):05d}"

    def _path(self, kind: str) -> str:
        return f"{self._folder}/{kind}-{self._name}"


def _decoded(content: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return json_decoder(kind).decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"another node sent a message that cannot be read: {error}") from error
