"""The window of a launch, from the mount until the first training step, or so many seconds: when it ends, and what it brought.

`RecordingWindow` is told the time and what happened and says what is to be done: pure. `close` does it, on a served image.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from robust_run.prefetch.launch import RECORD_WINDOW_S, Prepared
from robust_run.prefetch.record import Ended, Recording
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import QUANTUM_BYTES, HotList, SourceCounts, Status, Touch


class Served(Protocol):
    """An image that a block server shows: `inside.Inside` is one. Its methods may raise `RobustRunError`."""

    def status(self) -> Status | None:
        """Ask the server how it is; None where there is none."""
        ...

    def touches(self) -> tuple[list[Touch], float]:
        """Return what was read in the window, and how long that was."""
        ...

    def close_window(self) -> None:
        """Record no more."""
        ...

    def background(self, width: int, bytes_per_s: float | None = None) -> None:
        """Fetch the rest."""
        ...


class ImageStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch did with its image: a part of the start-up report."""

    way: str
    """local, hot, first or lazy."""
    why: str
    image_bytes: int
    hot_list_bytes: int
    """0: there was none."""
    touched_bytes: int
    """What the start read, in quanta of 128 KiB."""
    hit_rate: float | None
    """The share of it that was on the list; None: there was no list, or nothing was read."""
    unused_rate: float | None
    """The share of the list that was not read."""
    window_s: float
    reads: int
    waited: int
    """Reads that had to wait for a block."""
    waited_s: float
    repaired: int = 0
    """Blocks in the cache that were damaged, and were fetched again."""
    sources: tuple[SourceCounts, ...] = ()
    """Bytes by source."""
    problems: tuple[str, ...] = ()


class RecordingWindow:
    """When the window ends. Pure: time comes in."""

    def __init__(self, began_s: float, limit_s: float = RECORD_WINDOW_S) -> None:
        self._began_s, self._limit_s = began_s, limit_s
        self.ended: Ended | None = None

    def look(self, now_s: float, *, stepped: bool, running: bool = True) -> Ended | None:
        """Return how it has ended, once: the first time that it has. `stepped`: a worker has made its first training step."""
        if self.ended is not None:
            return None
        if stepped:
            self.ended = "step"
        elif now_s - self._began_s >= self._limit_s:
            self.ended = "limit"
        elif not running:
            self.ended = "end"
        return self.ended


def close(served: Served, prepared: Prepared, ended: Ended) -> tuple[Recording, ImageStart]:
    """Record no more, let the rest come, and return what was read and what that says. May raise what `served` raises."""
    served.close_window()
    touches, window_s = served.touches()
    status = served.status()
    rest = prepared.plan.after_window
    if rest.width and ended != "end":
        served.background(rest.width, rest.bytes_per_s)
    return Recording(touches=tuple(touches), window_s=window_s, ended=ended), summary(
        prepared, touches, window_s, status
    )


def summary(prepared: Prepared, touches: Iterable[Touch], window_s: float, status: Status | None) -> ImageStart:
    """Return what a launch did with its image. Pure."""
    touched = {touch.quantum for touch in touches}
    hit, unused = rates(touched, prepared.hot)
    problems = (*prepared.problems, *(status.problems if status else ()))
    return ImageStart(
        way=prepared.plan.way,
        why=prepared.plan.why,
        image_bytes=prepared.block_map.size_bytes,
        hot_list_bytes=hotlist.hot_bytes(prepared.hot) if prepared.hot else 0,
        touched_bytes=len(touched) * QUANTUM_BYTES,
        hit_rate=hit,
        unused_rate=unused,
        window_s=round(window_s, 3),
        reads=status.reads if status else 0,
        waited=status.waited if status else 0,
        waited_s=status.waited_s if status else 0.0,
        repaired=status.repaired if status else 0,
        sources=status.sources if status else (),
        problems=problems,
    )


def rates(touched: set[int], hot: HotList | None) -> tuple[float | None, float | None]:
    """Return which share of what was read was on a list, and which share of the list was not read."""
    if hot is None or not hot.ranges:
        return None, None
    listed = {quantum for each in hot.ranges for quantum in range(each.start, each.start + each.count)}
    common = len(listed & touched)
    return (round(common / len(touched), 4) if touched else None), round(1 - common / len(listed), 4)


def sentence(start: ImageStart, what: str = "image") -> str:
    """Return a launch's image in one line, for people, who know it as `what`."""
    count = "1 block was" if start.repaired == 1 else f"{start.repaired} blocks were"
    repaired = f"; {count} damaged in the cache and fetched again" if start.repaired else ""
    waits = f"{start.waited} of {start.reads} reads waited {start.waited_s:.1f} s together{repaired}"
    if start.way == "local":
        return f"{what}: {start.why}; {waits}"
    fetched = ", ".join(f"{each.good_bytes / 1e6:.0f} MB from {each.name}" for each in start.sources if each.good_bytes)
    hits = f", hit rate {100 * start.hit_rate:.0f} %" if start.hit_rate is not None else ""
    listed = f"hot list {start.hot_list_bytes / 1e6:.0f} MB{hits}" if start.hot_list_bytes else start.why
    return f"{what}: {listed}; {fetched or 'nothing was fetched'}; {waits}"
