"""Whether a rank waits inside NCCL, looked at often: four times a second, ten times while a stall may be forming.

A look is one read of 112 bytes. Only where the newest event is older than a second are the flows read, once, to learn whether
something is in flight; as long as that event stays the newest, so does what it says. While a rank waits, and a second longer,
what its flows' counters do is noted (the state log of Mycroft, arXiv 2509.03018, section 4): how a stall came about, which a
look at its end does not tell.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from robust_run.tracer.nccl.types import NcclNote
from robust_run.tracer.plugin import layout, reader

#: A newest event older than this makes a rank one that may wait.
QUIET_S = 1.0
#: Times of events are as coarse as the kernel's tick.
TICK_S = 0.02
#: How often states are noted.
NOTE_S = 0.1
#: Notes of a rank that are kept, those of one moment, and those that travel.
NOTES, NOTES_AT_ONCE, NOTES_TOLD = 600, 32, 64


class Waiting:
    """One rank, through the file that its plugin writes. Never raises."""

    def __init__(self, path: str) -> None:
        self.event_ns = 0
        """Of the newest event, as of the newest look; 0: nothing is traced (yet)."""
        self._path = path
        self._descriptor = -1
        self._checked_ns = 0
        self._in_flight = False
        self._noting_until_s = 0.0
        self._noted_ns = 0
        self._levels: reader.Levels = {}
        self._log: deque[NcclNote] = deque(maxlen=NOTES)

    def look(self, now_s: float) -> float | None:
        """Return since when nothing has happened to what the rank has in flight; None: something has just now, or nothing is."""
        if not self._glance():
            return None
        event_s = self.event_ns / 1e9
        if now_s - event_s <= QUIET_S:
            return None
        if self.event_ns != self._checked_ns:
            levels = reader.levels(self._descriptor)
            self._checked_ns, self._in_flight = self.event_ns, any(level[-1] for level in levels.values())
            if self._in_flight and now_s >= self._noting_until_s:
                self._log.clear()  # of a stall that is over
                self._levels, self._noted_ns = {}, 0
                self._note(levels, now_s)
        if not self._in_flight:
            return None
        self._noting_until_s = now_s + QUIET_S
        return event_s

    def note(self, now_s: float) -> bool:
        """Note what has changed, if the rank waits or did a moment ago; return whether that is so."""
        if now_s >= self._noting_until_s or not self._glance():
            return False
        if self.event_ns != self._noted_ns:
            self._note(reader.levels(self._descriptor), now_s)
        return True

    @property
    def notes(self) -> tuple[NcclNote, ...]:
        """Return the newest notes, oldest first."""
        return tuple(self._log)[-NOTES_TOLD:]

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def _glance(self) -> bool:
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (OSError, ValueError):
                return False
        self.event_ns = reader.event_ns(self._descriptor)
        return self.event_ns > 0

    def _note(self, levels: reader.Levels, now_s: float) -> None:
        """Add a note of each flow in flight that is another than before; the first ones, if there are too many."""
        is_old = now_s - self.event_ns / 1e9 > TICK_S  # else more may have happened at what is the same time
        self._noted_ns = self.event_ns if is_old else 0
        room = NOTES_AT_ONCE
        for key, level in levels.items():
            before = self._levels.get(key)
            if room and before != level and (level[-1] or (before is not None and before[-1])):
                room -= 1
                self._log.append(_note_of(key, level, now_s))
        self._levels = levels


def _note_of(key: int, level: tuple[int, ...], now_s: float) -> NcclNote:
    at = layout.flow_key(key)
    return NcclNote(
        at_s=now_s,
        comm=at.comm,
        channel=at.channel,
        peer=at.peer,
        direction="send" if at.sends else "recv",
        posted=level[0],
        gpu_ready=level[1],
        transmitted=level[2],
        done=level[3],
    )
