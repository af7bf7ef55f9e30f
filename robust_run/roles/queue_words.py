"""The words of a work queue. No behaviour.

An item is in one of three states:

    waiting ──take──► leased ──done──► gone                      a consumer that keeps no state: rollouts that take prompts
       ▲                │  └───keep──► kept ──release──► gone    one that goes back to checkpoints: a trainer that takes samples
       └─── returned ◄──┴──────────────┘ restore

It returns to `waiting` when its consumer is gone or gives it back, when its lease is over, and when a consumer goes back to a
checkpoint that was made before it took the item. Items have numbers in the order in which they were put, and are taken in it.
"""

from __future__ import annotations

import msgspec

MOST_ITEM_BYTES = 4 << 20
MOST_BYTES = 1 << 30
MOST_ITEMS = 1 << 20
MOST_NAMES = 64
"""Queues of one job."""
MOST_TAKE_BYTES = 16 << 20
"""So much is taken at once, or a single item."""
LEASE_S = 600.0


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a queue holds before who puts has to wait."""

    items: int = 1024
    """Waiting and leased ones. What is kept for a trainer that may go back does not count."""
    bytes: int = 256 << 20
    """Of all items, kept ones too."""
    lease_s: float = LEASE_S
    """A consumer that has said nothing about an item for so long has lost it."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One item, as a consumer gets it."""

    number: int
    generation: int
    """Of what it was made with: a policy's version. What is older than a consumer wants is refused."""
    key: str
    """What it is about, chosen by who put it; an item with a key that the queue has or had is not taken in again. One that waits
    is replaced by one of a later generation; one that was dropped because it was too old may be put again."""
    payload: bytes
    tries: int = 1
    """How often it was taken, this time included."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer has kept: what goes into its checkpoint. All numbers up to `through`, and those in `beyond`."""

    through: int = -1
    beyond: tuple[int, ...] = ()
    of: str = ""
    """Which queue: the numbers of another one, of an earlier run for instance, mean nothing here."""

    def has(self, number: int) -> bool:
        """Whether it was kept."""
        return number <= self.through or number in self.beyond


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How full a queue is, and what it has done. `put` = waiting + leased + kept + done + stale."""

    waiting: int = 0
    leased: int = 0
    kept: int = 0
    bytes: int = 0
    put: int = 0
    done: int = 0
    """Worked on, and gone: done ones, and kept ones that were released."""
    stale: int = 0
    """Refused because they were too old."""
    again: int = 0
    """Puts of a key that was there already."""
    returned: int = 0
    """How often an item went back to waiting."""


class Put(msgspec.Struct, frozen=True, kw_only=True, tag="put"):
    """An item was put."""

    key: str
    generation: int
    payload: bytes
    producer: str = ""


class Took(msgspec.Struct, frozen=True, kw_only=True, tag="took"):
    """A consumer asks for items: the oldest that wait, at most `count`; those of an older generation than `least` are dropped."""

    consumer: str
    count: int
    least: int = 0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """A consumer has worked on items, for good."""

    consumer: str
    numbers: tuple[int, ...]


class Keep(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """A consumer has worked on items, but may go back to before it did."""

    consumer: str
    numbers: tuple[int, ...]


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, tag="give_back"):
    """A consumer will not work on items."""

    consumer: str
    numbers: tuple[int, ...]


class Restore(msgspec.Struct, frozen=True, kw_only=True, tag="restore"):
    """A consumer began again from a checkpoint: of what is kept or leased to it, what the position has not goes back."""

    consumer: str
    position: Position


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """No consumer will go back to before this position: kept items that it has are gone."""

    position: Position


class ConsumerGone(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """A consumer ended: what is leased to it goes back. What it kept stays kept."""

    consumer: str


class Renew(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """A consumer still works on all that is leased to it."""

    consumer: str


QueueEvent = Put | Took | Done | Keep | GiveBack | Restore | Release | ConsumerGone | Renew
