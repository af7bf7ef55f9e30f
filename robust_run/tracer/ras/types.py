"""The words of NCCL's RAS subsystem, cut down to what differs between ranks. Plain data, no behaviour.

NCCL gathers how many operations of each kind every rank has launched in every communicator. Nearly always nearly all ranks say
the same, so that is kept once (`usual`) and only the ranks that differ are kept one by one. Launched means enqueued by the
program: operations that all ranks launched and that do not go on look the same everywhere. Ranks are those of the communicator.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

RasState = Literal["init", "running", "finalize", "abort", "unknown"]
"""What a rank does with its communicator: makes it, uses it, takes it down, gives it up."""

#: Kept of one answer; more are counted, not kept.
COMMUNICATORS, ROWS = 64, 64
WORD_CHARACTERS = 64

Word = Annotated[str, msgspec.Meta(max_length=WORD_CHARACTERS)]
Count = tuple[Word, int]
Counts = Annotated[tuple[Count, ...], msgspec.Meta(max_length=ROWS)]
"""Operations launched so far, by kind (`AllReduce`, as NCCL calls it)."""


class RasRank(msgspec.Struct, frozen=True, array_like=True):
    """A rank that is not as most are."""

    rank: int
    pid: int
    """As it sees itself; -1: not said."""
    host: Word
    """Address of its node, in NCCL's own network."""
    state: RasState
    error: int
    """NCCL's result code of an error, of initialization or later; 0: none. -1: there is one, not said which."""
    counts: Counts
    """Where the old text form leaves a kind out, it is as usual."""


class RasMissing(msgspec.Struct, frozen=True, array_like=True):
    """A rank of which nothing was said."""

    rank: int
    pid: int
    host: Word
    unresponsive: bool
    """Its process did not answer. False: it did, but knows no such communicator (any more)."""
    dead: bool
    """NCCL cannot reach it and takes it for dead."""


class RasCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """One communicator of the job."""

    hash: int
    """As in `tracer.nccl.types.Communicator`."""
    size: int
    """Its ranks; 0: not said."""
    answered: int
    """Ranks of which something is known."""
    usual: Counts
    """What most ranks say; where two say are equally many, the larger number."""
    usual_state: RasState
    odd: Annotated[tuple[RasRank, ...], msgspec.Meta(max_length=ROWS)] = ()
    """Ranks that differ from that, or have an error."""
    missing: Annotated[tuple[RasMissing, ...], msgspec.Meta(max_length=ROWS)] = ()
    left_out: int = 0
    """Further ranks that differ or are missing."""


class RasReport(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of NCCL's RAS. Covers the whole job, whichever process gave it."""

    nccl: Word
    """Version."""
    form: Literal["json", "text"]
    """NCCL speaks JSON from 2.28.7."""
    communicators: Annotated[tuple[RasCommunicator, ...], msgspec.Meta(max_length=COMMUNICATORS)]
    """Those with anything odd first."""
    left_out: int = 0
    """Further communicators."""
    timeouts: int = 0
    """Times that NCCL gave up waiting for an answer."""
