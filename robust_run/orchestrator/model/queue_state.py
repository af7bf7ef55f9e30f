"""State of a work queue, and what a request is answered. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.roles.queue_words import (
    Item,
    QueueLimits,
)

Standing = Literal["waiting", "leased", "kept"]


class Held(msgspec.Struct):
    """One item, and where it stands."""

    item: Item
    standing: Standing = "waiting"
    consumer: str = ""
    until_s: float = 0.0
    """When its lease is over."""
    taken_s: float = 0.0
    """When it was leased, however often that was renewed since."""
    tries: int = 0


class QueueState(msgspec.Struct, kw_only=True):
    """All of a queue. Changed in place by `step`."""

    limits: QueueLimits = QueueLimits()
    identity: str = ""
    """Of this queue and no other, whatever its name."""
    held: dict[int, Held] = {}
    waiting: list[int] = []
    """A heap of numbers; may name some that do not wait any more."""
    next_number: int = 0
    keys: dict[str, int] = {}
    """Of items that are held, and of those that are gone, the newest."""
    gone_keys: dict[str, None] = {}
    """In the order in which their items went."""
    done_by: dict[int, str] = {}
    """Of the items that went last: who was done with them."""
    bytes: int = 0
    kept: int = 0
    """How many of `held` are kept."""
    counts: dict[str, int] = {}
    put_by: dict[str, float] = {}
    """Who has put something, and when last: others wait for it, whether it lives or not."""
    taken_by: dict[str, float] = {}
    """Who has taken something, and when last."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event."""

    items: tuple[Item, ...] = ()
    accepted: bool = True
    """False: the queue is full, and who puts tries again later."""
    is_again: bool = False
    """The key was there already; nothing was added."""
    lost: tuple[int, ...] = ()
    """Of the numbers that were named, those that this consumer does not hold."""
    flaw: str = ""
    """Why it can never be taken in; empty: it was, or may be later."""
    stale: tuple[int, ...] = ()
    """Numbers that were dropped because they were too old."""
