"""The table in which all that fetch on a node say what they fetch, and see what the others do: a page of memory without a name.

The launcher makes it, and its helpers find it by ROBUST_TURNS. Each writes a row of its own and decides by the same rules
(`turns`), so that nobody has to be asked, and nobody's end stops the others. Who cannot open it fetches as if it were alone.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress

from robust_run.store.rules import turns
from robust_run.store.rules.turns import Fetching, Urgency

VARIABLE = "ROBUST_TURNS"
#: Rows, by what is fetched: there is one of each on a node.
IMAGE, SET_UP, CHECKPOINT, CODE = "image", "set-up", "checkpoint", "code"
_NAMES = (IMAGE, SET_UP, CHECKPOINT, CODE)
_ROW = struct.Struct("<BBBxxxxxQQQddd")
"""Urgency + 1 (0: nothing was said yet), whether it is waited for, whether it is over, bytes that are here, of how many, and that
came since it began; when that was said, when it began, when the last of them came."""
_ROW_BYTES, _TABLE_BYTES = 64, 4096
_EVERY_S = 0.1

_ours: dict[int, int] = {}
"""Of this process: its pid to the descriptor of the table that it made."""


def begin(env: MutableMapping[str, str] = os.environ) -> str:
    """Make this process's table, once, and tell its helpers in `env`; return where it is. Empty: there can be none."""
    descriptor = _ours.get(os.getpid())
    if descriptor is None:
        try:
            descriptor = os.memfd_create("robust-run-turns", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, _TABLE_BYTES)
        except OSError:
            return ""
        _ours[os.getpid()] = descriptor
    place = f"/proc/{os.getpid()}/fd/{descriptor}"
    env[VARIABLE] = place
    return place


def is_begun() -> bool:
    """Whether this process has made one."""
    return os.getpid() in _ours


class TurnTable:
    """The table as one who fetches has it, or who tells people of it. Safe for threads."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError, ValueError: there is none."""
        self._clock = clock
        self._spans: dict[str, tuple[float, float, int]] = {}
        """Of what is said here: when it began, when something came last, and how much had come by then."""
        self._came_before: dict[str, int] = {}
        """What processes before this one have fetched of the same, such as those in which a set-up is built in an image."""
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._map = mmap.mmap(descriptor, _TABLE_BYTES)
        finally:
            os.close(descriptor)

    def say(
        self,
        name: str,
        urgency: Urgency,
        done_bytes: int,
        total_bytes: int,
        *,
        is_waited_for: bool = False,
        is_over: bool = False,
        here_before_bytes: int = 0,
    ) -> None:
        """Say what is fetched here; again at least every second. `here_before_bytes`: of `done_bytes`, what need not come."""
        now_s = self._clock()
        if name not in self._spans:
            self._spans[name] = self._said_before(name) or (now_s, now_s, 0)
            self._came_before[name] = self._spans[name][-1]
        came_bytes = self._came_before[name] + max(0, done_bytes - here_before_bytes)
        began_s, moved_s, had_bytes = self._spans[name]
        moved_s = now_s if came_bytes > had_bytes else moved_s
        self._spans[name] = began_s, moved_s, came_bytes
        said = (urgency + 1, is_waited_for, is_over, done_bytes, total_bytes, came_bytes, now_s, began_s, moved_s)
        row = _ROW.pack(*said)
        at = _NAMES.index(name) * _ROW_BYTES
        self._map[at : at + _ROW.size] = row

    def _said_before(self, name: str) -> tuple[float, float, int] | None:
        before = next((each for each in self.all() if each.name == name and each.came_bytes), None)
        return (before.began_s, before.moved_s, before.came_bytes) if before is not None else None

    def all(self) -> list[Fetching]:
        """Return what all of them have said last."""
        found = []
        for number, name in enumerate(_NAMES):
            urgency, waited, over, done, total, came, *times_s = _ROW.unpack_from(self._map, number * _ROW_BYTES)
            if 0 < urgency <= len(Urgency):
                found.append(
                    Fetching(
                        name=name,
                        urgency=Urgency(urgency - 1),
                        is_waited_for=bool(waited),
                        is_over=bool(over),
                        done_bytes=done,
                        total_bytes=total,
                        came_bytes=came,
                        seen_s=times_s[0],
                        began_s=times_s[1],
                        moved_s=times_s[2],
                    )
                )
        return found

    def allowed(self, name: str, width: int) -> int:
        """Return how many requests may be under way now; see `turns.allowed`."""
        return turns.allowed(name, width, self.all(), self._clock())


def opened(place: str | None = None) -> TurnTable | None:
    """Return the table that this process was told of; None: it was told of none, or cannot open it."""
    where = os.environ.get(VARIABLE, "") if place is None else place
    if not where:
        return None
    try:
        return TurnTable(where)
    except (OSError, ValueError):
        return None


def take_turns(look: Callable[[TurnTable], bool], table: TurnTable | None = None) -> None:
    """Have `look` say what is fetched, and heed the others, ten times a second until it returns False; in a thread."""
    found = opened() if table is None else table
    if found is None:
        return

    def run() -> None:
        with suppress(ValueError, OSError):  # the process is ending
            while look(found):
                time.sleep(_EVERY_S)

    threading.Thread(target=run, name="turns", daemon=True).start()
