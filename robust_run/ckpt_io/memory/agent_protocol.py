"""Messages between a node's keeper and its agent, in the frames of `protocol`."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.memory.pace import Strides
from robust_run.ckpt_io.memory.protocol import SCHEMA, KeeperMessage
from robust_run.ckpt_io.memory.types import MemoryGeneration


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What connections of the job are encrypted with: paths of files in PEM form; empty where there is none."""

    cert: str = ""
    key: str = ""
    ca: str = ""


class KeeperSetup(KeeperMessage, frozen=True, tag="keeper_setup", kw_only=True):
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
    tls: TlsFiles | None = None
    """None: what goes between keepers is not encrypted."""
    job: str = ""
    """What names the job, the same on all its nodes."""


class CopyTo(KeeperMessage, frozen=True, tag="copy_to", kw_only=True):
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


class Bring(KeeperMessage, frozen=True, tag="bring", kw_only=True):
    """Ranks of this node start from a generation, and parts of it are on other nodes: have them here when a worker fetches them.
    Where another number of ranks saved it, these are parts of all of those ranks.

    `from_attempt` and `step` name the generation; it comes before `AttemptBegins` of `attempt`.
    """

    attempt: int
    from_attempt: int
    step: int
    sources: tuple[Source, ...]


class GoBy(KeeperMessage, frozen=True, tag="go_by", kw_only=True):
    """Which steps all nodes of an attempt keep, and copy: see `pace`."""

    attempt: int
    strides: Strides


class AttemptBegins(KeeperMessage, frozen=True, tag="attempt_begins", kw_only=True):
    """Ranks of this node in a new attempt, and where it starts from."""

    attempt: int
    ranks: tuple[int, ...]
    world_size: int
    resumed_step: int | None = None
    """None: from the beginning, or from a checkpoint that says no step; nothing in memory belongs to that."""
    resumed_attempt: int | None = None
    """Which made what it starts from, if that is in memory; None: it is not."""


class LookInMemory(KeeperMessage, frozen=True, tag="look_in_memory", kw_only=True):
    """Say what is held whole."""

    number: int


class MemoryLook(KeeperMessage, frozen=True, tag="memory_look", kw_only=True):
    """What is held whole: the newest generation first."""

    number: int
    generations: tuple[MemoryGeneration, ...] = ()
    room_bytes: int | None = None
    """So much more may be taken for parts; None: nothing is known that limits it."""


class FlushLast(KeeperMessage, frozen=True, tag="flush_last", kw_only=True):
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


class Flushed(KeeperMessage, frozen=True, tag="flushed", kw_only=True):
    """What came of that."""

    number: int
    text: str = ""
    """A line for people; empty: there was nothing to do."""
    is_stored: bool = False


class KeeperNote(KeeperMessage, frozen=True, tag="keeper_note", kw_only=True):
    """A line for people."""

    text: str


class KeeperReady(KeeperMessage, frozen=True, tag="keeper_ready", kw_only=True):
    """Workers may connect from now on."""

    port: int = 0
    """Where keepers of other nodes do; 0: nowhere."""


class NeedsStrides(KeeperMessage, frozen=True, tag="needs_strides", kw_only=True):
    """Which steps this node can keep, and copy: for all nodes to go by."""

    attempt: int
    strides: Strides


FromAgent = KeeperSetup | AttemptBegins | LookInMemory | CopyTo | GoBy | Bring | FlushLast
ToAgent = MemoryLook | KeeperNote | KeeperReady | Flushed | NeedsStrides
