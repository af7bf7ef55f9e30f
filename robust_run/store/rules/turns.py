"""Who may fetch how much now, of all that a node fetches at a job's start. Pure.

By who waits: what a reader waits for goes first, then the set-up (nothing starts before it), then what an image's earlier starts
read, then the checkpoint (needed after the imports), then the rest of the image. All of it comes over one link: what goes later
would otherwise take its share of it from what is needed now. What must wait is not stopped: it keeps one request under way, so
that a source that is slow for others is no reason to fetch nothing, and nobody waits for somebody who has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

#: Who has not said anything for so long has ended, or stands still.
STALE_S = 2.0
#: Requests of who is to wait.
LEAST = 1


class Urgency(IntEnum):
    """Who waits for it; the lower, the sooner."""

    DEMANDED = 0
    SET_UP = 1
    HOT = 2
    CHECKPOINT = 3
    REST = 4


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """What one process fetches, as it says itself."""

    name: str
    """What people call it: image, set-up, checkpoint, code."""
    urgency: Urgency
    is_waited_for: bool = False
    """A reader waits now."""
    done_bytes: int = 0
    total_bytes: int = 0
    """0: not known yet."""
    is_over: bool = False
    came_bytes: int = 0
    """Of these, what came since it began: the rest was here before."""
    seen_s: float = 0.0
    """When it said so: of the node's monotonic clock."""
    began_s: float = 0.0
    moved_s: float = 0.0
    """When the last of what came did."""

    @property
    def rank(self) -> int:
        """Return how urgent it is now."""
        return Urgency.DEMANDED if self.is_waited_for else self.urgency


def are_fetching(all_of_them: Sequence[Fetching], now_s: float) -> list[Fetching]:
    """Return those that fetch now."""
    return [each for each in all_of_them if not each.is_over and now_s - each.seen_s < STALE_S]


def allowed(name: str, width: int, all_of_them: Sequence[Fetching], now_s: float) -> int:
    """Return how many requests one of them may have under way now. `width`: as many as it would have alone."""
    now = are_fetching(all_of_them, now_s)
    mine = next((each for each in now if each.name == name), None)
    if mine is None or all(each.rank >= mine.rank for each in now):
        return width
    return min(width, LEAST)


# --- for people


def line(now: Sequence[Fetching], before: Mapping[str, Fetching], now_s: float) -> str:
    """Return what a node fetches, in a line: bytes, rate, how long it will take, what is waited for; empty: nothing.

    `before`: what the same said some seconds ago.
    """
    telling = [each for each in are_fetching(now, now_s) if each.done_bytes or each.total_bytes or each.is_waited_for]
    parts = [_part(each, before.get(each.name)) for each in sorted(telling, key=lambda each: each.rank)]
    return f"fetching: {'; '.join(parts)}" if parts else ""


def _part(each: Fetching, before: Fetching | None) -> str:
    of = f" of {size(each.total_bytes)}" if each.total_bytes else ""
    said = f"{each.name} {size(each.done_bytes)}{of}"
    details = []
    if before is not None and each.seen_s > before.seen_s and each.done_bytes >= before.done_bytes:
        rate = (each.done_bytes - before.done_bytes) / (each.seen_s - before.seen_s)
        details.append(f"{size(rate)}/s")
        left = each.total_bytes - each.done_bytes
        if rate > 0 and left > 0:
            details.append(f"{left / rate:.0f} s left")
    if each.is_waited_for:
        details.append("waited for")
    return f"{said} ({', '.join(details)})" if details else said


def size(size_bytes: float) -> str:
    """Return `312 MB` or `1.6 GB`."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
