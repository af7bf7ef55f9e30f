"""Messages between a node's keeper and its workers: four bytes of length, big-endian, then a msgpack map. What goes between
keeper and agent, in the same way, is in `agent_protocol`.

File descriptors of buffers travel beside `Reserved` and `Held` (SCM_RIGHTS), in the order of the ids.
"""

from __future__ import annotations

import msgspec

SCHEMA = 1
SOCKET = "ckpt.sock"
LARGEST_FRAME_BYTES = 1 << 20
HEADER_BYTES = 4


class KeeperMessage(msgspec.Struct, frozen=True, tag_field="type"):
    """Any message to or from a keeper."""


# --- a worker to the keeper


class Attach(KeeperMessage, frozen=True, tag="attach", kw_only=True):
    """The first message of a worker."""

    schema: int = SCHEMA
    rank: int
    world_size: int
    attempt: int


class Reserve(KeeperMessage, frozen=True, tag="reserve", kw_only=True):
    """Have room for parts of so many bytes. What smaller buffers hold is kept until they are needed."""

    size_bytes: int
    storage: str = ""
    """The folder that these checkpoints belong to; empty: the program names none."""


class Begin(KeeperMessage, frozen=True, tag="begin", kw_only=True):
    """A part is about to be written."""

    step: int


class Copied(KeeperMessage, frozen=True, tag="copied", kw_only=True):
    """It is written. Has no answer."""

    step: int
    buffer: int
    used_bytes: int


class Fetch(KeeperMessage, frozen=True, tag="fetch", kw_only=True):
    """Hand out a part of a generation."""

    attempt: int
    step: int
    rank: int = -1
    """Of the world that saved it; -1: this worker's own."""


class Read(KeeperMessage, frozen=True, tag="read", kw_only=True):
    """What was fetched has been read: its buffer may be used again. Has no answer; the end of the connection says it, too."""

    attempt: int
    step: int
    rank: int = -1
    """As in `Fetch`."""


class AskFlush(KeeperMessage, frozen=True, tag="ask_flush"):
    """Say whether a step may be written to storage from here."""


class Flush(KeeperMessage, frozen=True, tag="flush", kw_only=True):
    """Write this step to storage, once all ranks of the node have copied it. All of them ask; has no answer."""

    step: int
    run_dir: str = ""
    """Where a note of it is left; empty: nowhere."""


FromWorker = Attach | Reserve | Begin | Copied | Fetch | Read | AskFlush | Flush


# --- the keeper to a worker


class Attached(KeeperMessage, frozen=True, tag="attached", kw_only=True):
    """Welcome."""

    schema: int = SCHEMA


class Reserved(KeeperMessage, frozen=True, tag="reserved", kw_only=True):
    """Buffers of this rank; their descriptors come beside it."""

    buffers: tuple[int, ...]
    size_bytes: int


class Refused(KeeperMessage, frozen=True, tag="refused", kw_only=True):
    """There is no room, or it is not allowed: why, for people."""

    reason: str


class Place(KeeperMessage, frozen=True, tag="place", kw_only=True):
    """Where the part goes."""

    buffer: int
    is_new: bool = False
    """It is one more than was handed out; its descriptor comes beside this."""


class Skip(KeeperMessage, frozen=True, tag="skip", kw_only=True):
    """This step is not kept: no buffer may be used again yet."""

    reason: str
    is_planned: bool = False
    """Not every step is kept: one that follows soon is."""


class Held(KeeperMessage, frozen=True, tag="held", kw_only=True):
    """The part; its descriptor comes beside it."""

    used_bytes: int
    digest: bytes
    created_s: float


class Absent(KeeperMessage, frozen=True, tag="absent", kw_only=True):
    """It is not held."""

    reason: str
    was_due: bool = False
    """It was to be brought from another node, and could not be."""


class Coming(KeeperMessage, frozen=True, tag="coming", kw_only=True):
    """What was fetched is on its way from another node; said every second until it is there."""

    done_bytes: int = 0
    of_bytes: int = 0


class FlushState(KeeperMessage, frozen=True, tag="flush_state", kw_only=True):
    """Whether something is being written to storage already."""

    is_busy: bool


FromKeeper = Attached | Reserved | Refused | Place | Skip | Held | Absent | Coming | FlushState
