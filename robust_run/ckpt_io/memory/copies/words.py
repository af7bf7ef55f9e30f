"""Messages between the keepers of two nodes. Every number has a limit, so that nothing that comes can ask for more than there is.

A push: `Push` → `Go`, then the bytes of the part → `Kept`; or, in place of `Go`: `Kept` (it is there already), `NoRoom`, `Stale`,
`Later`. A pull: `Pull` → `Parcel`, then the bytes; or `NotHere`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from robust_run.ckpt_io.memory.generations import Generation
from robust_run.ckpt_io.memory.types import MOST_STEP
from robust_run.store.digests import DIGEST_BYTES

#: Ranks of one node.
_MOST_RANKS = 4096
_Rank = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Attempt = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Step = Annotated[int, Meta(ge=0, le=MOST_STEP)]
_Size = Annotated[int, Meta(ge=1, le=1 << 46)]
_Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Reason = Annotated[str, Meta(max_length=1000)]
_Stride = Annotated[int, Meta(ge=1, le=1 << 40)]


class _Word(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    pass


class PartSent(_Word, frozen=True):
    """What is said of a part before its bytes."""

    attempt: _Attempt
    step: _Step
    world_size: _Rank
    used_bytes: _Size
    room_bytes: _Size
    """Of the buffer that it is in: parts that follow may be as large."""
    digest: _Digest
    created_s: float

    @property
    def generation(self) -> Generation:
        """Of what it is a part."""
        return self.attempt, self.step


class Push(PartSent, frozen=True, tag="push"):
    """Keep a copy of a part."""

    rank: _Rank
    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1, max_length=_MOST_RANKS)]
    """All of the node that sends: a generation is whole when each has its part."""
    during: _Attempt
    """The attempt in which it is sent."""
    stride: _Stride
    """How many steps the sender needs for one generation: see `pace`."""


class Pull(_Word, frozen=True, tag="pull"):
    """Give a part away."""

    rank: _Rank
    attempt: _Attempt
    step: _Step


class Go(_Word, frozen=True, tag="go"):
    """There is room: the bytes may come."""


class Kept(_Word, frozen=True, tag="kept"):
    """The part is here, whole."""

    stride: _Stride
    """How many steps the one who keeps it needs to send its own."""


class NoRoom(_Word, frozen=True, tag="no_room"):
    """There is too little memory: why, for people."""

    reason: _Reason


class Stale(_Word, frozen=True, tag="stale"):
    """It belongs to a past that did not happen, or to a rank that runs here."""

    reason: _Reason


class Later(_Word, frozen=True, tag="later"):
    """Not yet; nothing is wrong."""

    reason: _Reason


class Parcel(PartSent, frozen=True, tag="parcel"):
    """The part follows."""


class NotHere(_Word, frozen=True, tag="not_here"):
    """It is not held whole."""

    reason: _Reason


Asked = Push | Pull
Answered = Go | Kept | NoRoom | Stale | Later | Parcel | NotHere
