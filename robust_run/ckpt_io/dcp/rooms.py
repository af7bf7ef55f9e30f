"""Who has which staging buffer: one save each, used again by the next, two at most."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from robust_run.ckpt_io.dcp.staging import Room, bytes_for, take, with_slack

#: A save that is being written, and the one that waits for it.
MOST_ROOMS = 2
#: A room that is so many times as large as needed is made anew.
_TOO_LARGE = 2
_SMALL_BYTES = 1 << 20

MakeRoom = Callable[[int, bool], Room]


def _made(size_bytes: int, is_shared: bool) -> Room:
    return Room(size_bytes, is_shared=is_shared)


class Rooms:
    """All staging buffers of a process. For many threads."""

    def __init__(self, make: MakeRoom = _made) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._idle: list[Room] = []
        self._used = 0

    def stage(self, state: Mapping[str, Any], *, is_shared: bool) -> tuple[Any, Room]:
        """Copy a state dict; return the copy, and the room to give back when it was saved.

        Blocks while two saves before it are not written yet: memory for a third would be fresh, and there may be none.
        """
        taken = take(state)
        room = self._enter(bytes_for(taken.shapes), is_shared)
        try:
            return taken.copied_into(room), room
        except BaseException:
            self.give_back(room, keep=False)
            raise

    def give_back(self, room: Room, *, keep: bool) -> None:
        """Say that nobody reads a room any more. `keep`: for the next save."""
        if not keep:
            room.close()
        with self._changed:
            self._used -= 1
            self._idle += [room] if keep else []
            self._changed.notify()

    def _enter(self, size_bytes: int, is_shared: bool) -> Room:
        with self._changed:
            while self._used >= MOST_ROOMS:
                self._changed.wait()
            self._used += 1
            fitting = [room for room in self._idle if room.is_shared == is_shared and _fits(room, size_bytes)]
            if fitting:
                room = min(fitting, key=lambda each: each.size_bytes)
                self._idle.remove(room)
                return room
            stale = self._idle.pop(0) if self._idle and self._used + len(self._idle) > MOST_ROOMS else None
        if stale is not None:
            stale.close()
            del stale  # its memory, before more is taken
        try:
            return self._make(with_slack(size_bytes), is_shared)
        except BaseException:
            with self._changed, suppress(Exception):
                self._used -= 1
                self._changed.notify()
            raise


def _fits(room: Room, size_bytes: int) -> bool:
    return size_bytes <= room.size_bytes <= with_slack(size_bytes) * _TOO_LARGE + _SMALL_BYTES
