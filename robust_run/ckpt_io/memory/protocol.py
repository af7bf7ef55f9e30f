"""Messages between a node's keeper, its workers and its agent: four bytes of length, big-endian, then a msgpack map.

File descriptors of buffers travel beside `Reserved` and `Held` (SCM_RIGHTS), in the order of the ids.
"""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.memory.pace import Strides
from robust_run.ckpt_io.memory.types import MemoryGeneration

SCHEMA = 1
SOCKET = "ckpt.sock"
LARGEST_FRAME_BYTES = 1 << 20
HEADER_BYTES = 4


class _Message(msgspec.Struct, frozen=True, tag_field="type"):
    pass


# --- a worker to the keeper


class Attach(_Message, frozen=True, tag="attach", kw_only=True):
    """The first message of a worker."""

    schema: int = SCHEMA
    rank: int
    world_size: int
    attempt: int


class Reserve(_Message, frozen=True, tag="reserve", kw_only=True):
    """Have room for parts of so many bytes. What smaller buffers hold is kept until they are needed."""

    size_bytes: int
    storage: str = ""
    """The folder that these checkpoints belong to; empty: the program names none."""


class Begin(_Message, frozen=True, tag="begin", kw_only=True):
    """A part is about to be written."""

    step: int


class Copied(_Message, frozen=True, tag="copied", kw_only=True):
    """It is written. Has no answer."""

    step: int
    buffer: int
    used_bytes: int


class Fetch(_Message, frozen=True, tag="fetch", kw_only=True):
    """Hand out a part of a generation."""

    attempt: int
    step: int
    rank: int = -1
    """Of the world that saved it; -1: this worker's own."""


class Read(_Message, frozen=True, tag="read", kw_only=True):
    """What was fetched has been read: its buffer may be used again. Has no answer; the end of the connection says it, too."""

    attempt: int
    step: int
    rank: int = -1
    """As in `Fetch`."""


class AskFlush(_Message, frozen=True, tag="ask_flush"):
    """Say whether a step may be written to storage from here."""


class Flush(_Message, frozen=True, tag="flush", kw_only=True):
    """Write this step to storage, once all ranks of the node have copied it. All of them ask; has no answer."""

    step: int
    run_dir: str = ""
    """Where a note of it is left; empty: nowhere."""


FromWorker = Attach | Reserve | Begin | Copied | Fetch | Read | AskFlush | Flush


# --- the keeper to a worker


class Attached(_Message, frozen=True, tag="attached", kw_only=True):
    """Welcome."""

    schema: int = SCHEMA


class Reserved(_Message, frozen=True, tag="reserved", kw_only=True):
    """Buffers of this rank; their descriptors come beside it."""

    buffers: tuple[int, ...]
    size_bytes: int


class Refused(_Message, frozen=True, tag="refused", kw_only=True):
    """There is no room, or it is not allowed: why, for people."""

    reason: str


class Place(_Message, frozen=True, tag="place", kw_only=True):
    """Where the part goes."""

    buffer: int
    is_new: bool = False
    """It is one more than was handed out; its descriptor comes beside this."""


class Skip(_Message, frozen=True, tag="skip", kw_only=True):
    """This step is not kept: no buffer may be used again yet."""

    reason: str
    is_planned: bool = False
    """Not every step is kept: one that follows soon is."""


class Held(_Message, frozen=True, tag="held", kw_only=True):
    """The part; its descriptor comes beside it."""

    used_bytes: int
    digest: bytes
    created_s: float


class Absent(_Message, frozen=True, tag="absent", kw_only=True):
    """It is not held."""

    reason: str
    was_due: bool = False
    """It was to be brought from another node, and could not be."""


class Coming(_Message, frozen=True, tag="coming", kw_only=True):
    """What was fetched is on its way from another node; said every second until it is there."""

    done_bytes: int = 0
    of_bytes: int = 0


class FlushState(_Message, frozen=True, tag="flush_state", kw_only=True):
    """Whether something is being written to storage already."""

    is_busy: bool


FromKeeper = Attached | Reserved | Refused | Place | Skip | Held | Absent | Coming | FlushState


# --- the agent to the keeper, and back


class KeeperSetup(_Message, frozen=True, tag="keeper_setup", kw_only=True):
    """The first message of the agent: where workers find the keeper, and how much it may use."""

    schema: int = SCHEMA
    folder: str
    """Of the socket, mode 0700; it is there."""
    limit_bytes: int | None = None
    """Of all buffers of this node; None: as much as the node's memory has room for."""
    address: str = ""
    """To listen on for keepers of other nodes; empty: nothing is copied between nodes."""
    key: bytes = b""
    """What keepers of the job prove to each other: 32 bytes. Secret."""
    job: str = ""
    """What names the job, the same on all its nodes."""


class CopyTo(_Message, frozen=True, tag="copy_to", kw_only=True):
    """Which node's keeper gets a copy of what this node's ranks save in an attempt."""

    attempt: int
    host: str = ""
    """Empty: no node does."""
    port: int = 0
    name: str = ""
    """Of the node, for people."""


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Who has a rank's part."""

    rank: int
    host: str
    port: int
    name: str = ""
    """Of the node, for people."""
    within_s: float = 0.0
    """What has not come by then is given up; 0: it may take as long as some of it comes."""


class Bring(_Message, frozen=True, tag="bring", kw_only=True):
    """Ranks of this node start from a generation, and parts of it are on other nodes: have them here when a worker fetches them.
    Where another number of ranks saved it, these are parts of all of those ranks.

    `from_attempt` and `step` name the generation; it comes before `AttemptBegins` of `attempt`.
    """

    attempt: int
    from_attempt: int
    step: int
    sources: tuple[Source, ...]


class GoBy(_Message, frozen=True, tag="go_by", kw_only=True):
    """Which steps all nodes of an attempt keep, and copy: see `pace`."""

    attempt: int
    strides: Strides


class AttemptBegins(_Message, frozen=True, tag="attempt_begins", kw_only=True):
    """Ranks of this node in a new attempt, and where it starts from."""

    attempt: int
    ranks: tuple[int, ...]
    world_size: int
    resumed_step: int | None = None
    """None: from the beginning, or from a checkpoint that says no step; nothing in memory belongs to that."""
    resumed_attempt: int | None = None
    """Which made what it starts from, if that is in memory; None: it is not."""


class LookInMemory(_Message, frozen=True, tag="look_in_memory", kw_only=True):
    """Say what is held whole."""

    number: int


class MemoryLook(_Message, frozen=True, tag="memory_look", kw_only=True):
    """What is held whole: the newest generation first."""

    number: int
    generations: tuple[MemoryGeneration, ...] = ()
    room_bytes: int | None = None
    """So much more may be taken for parts; None: nothing is known that limits it."""


class FlushLast(_Message, frozen=True, tag="flush_last", kw_only=True):
    """The job is over: write the newest generation to storage, if it is not there. Said again with less time, that counts."""

    number: int
    limit_s: float
    """0: give it up."""
    others_s: float = 60.0
    """How long other nodes may show no sign of doing so, too."""
    is_job_over: bool = True
    """Else it is only so here, as far as is known: attempts may follow elsewhere, and start from any checkpoint."""
    stands_in: tuple[int, ...] = ()
    """Ranks of lost nodes whose copies are here: they are written as if they were this node's."""


class Flushed(_Message, frozen=True, tag="flushed", kw_only=True):
    """What came of that."""

    number: int
    text: str = ""
    """A line for people; empty: there was nothing to do."""
    is_stored: bool = False


class KeeperNote(_Message, frozen=True, tag="keeper_note", kw_only=True):
    """A line for people."""

    text: str


class KeeperReady(_Message, frozen=True, tag="keeper_ready", kw_only=True):
    """Workers may connect from now on."""

    port: int = 0
    """Where keepers of other nodes do; 0: nowhere."""


class NeedsStrides(_Message, frozen=True, tag="needs_strides", kw_only=True):
    """Which steps this node can keep, and copy: for all nodes to go by."""

    attempt: int
    strides: Strides


FromAgent = KeeperSetup | AttemptBegins | LookInMemory | CopyTo | GoBy | Bring | FlushLast
ToAgent = MemoryLook | KeeperNote | KeeperReady | Flushed | NeedsStrides
