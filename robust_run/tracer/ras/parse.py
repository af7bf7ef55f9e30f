"""From what NCCL's RAS answers, as JSON (2.28.7 and later) or as text (2.24 and later), to a report. Pure; never raises.

Both forms were read from NCCL's documentation (user guide, "RAS") and its sources (`src/ras/client_support.cc`, tag 2.29). The
text is for people: it lists single ranks only where they are fewer than half of their communicator, which is all that matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from robust_run.decoders import json_decoder
from robust_run.tracer.ras.text import parse_text
from robust_run.tracer.ras.types import (
    COMMUNICATORS,
    ROWS,
    WORD_CHARACTERS,
    Count,
    RasCommunicator,
    RasMissing,
    RasRank,
    RasReport,
    RasState,
)

__all__ = ["parse"]

_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
#: NCCL's result codes that are no error: success, and an operation that is under way.
FINE = (0, 7)


class _Status(msgspec.Struct):
    init_state: _Number = 0
    async_error: _Number = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: _Number
    status: _Status
    host: str = ""
    pid: _Number = -1
    collective_counts: dict[str, _Number] = {}


class _Communicator(msgspec.Struct):
    hash: str
    size: _Number
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _About(msgspec.Struct, frozen=True):
    timeouts_count: _Number = 0


class _Answer(msgspec.Struct):
    communicators: list[_Communicator]
    nccl_version: str = ""
    ras: _About = _About()


def parse(content: bytes) -> RasReport | None:
    """Return what an answer says, in either form; None if it is neither."""
    text = content.decode("utf-8", errors="replace")
    at = text.find("{")
    if at < 0 or text[:at].strip():
        return parse_text(text)
    try:
        answer = json_decoder(_Answer, strict=False).decode(text[at:].encode())
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    found = sorted(map(_communicator, answer.communicators), key=lambda one: not (one.odd or one.missing))
    return RasReport(
        nccl=answer.nccl_version[:WORD_CHARACTERS],
        form="json",
        communicators=tuple(found[:COMMUNICATORS]),
        left_out=max(0, len(found) - COMMUNICATORS),
        timeouts=max(0, answer.ras.timeouts_count),
    )


def _communicator(said: _Communicator) -> RasCommunicator:
    """Return a communicator with the ranks that differ from most."""
    rows = [_rank(one) for one in said.ranks]
    usual = _usual(rows)
    states = Counter(row.state for row in rows)
    state: RasState = states.most_common(1)[0][0] if states else "unknown"
    odd = [row for row in rows if row.counts != usual or row.state != state or row.error]
    missing = [
        RasMissing(one.rank, one.pid, one.host[:WORD_CHARACTERS], one.status.unresponsive, one.status.considered_dead)
        for one in said.missing_ranks
    ]
    return RasCommunicator(
        hash=_hash(said.hash),
        size=max(0, said.size),
        answered=len(rows),
        usual=usual,
        usual_state=state,
        odd=tuple(odd[:ROWS]),
        missing=tuple(missing[:ROWS]),
        left_out=max(0, len(odd) - ROWS) + max(0, len(missing) - ROWS),
    )


def _rank(said: _Rank) -> RasRank:
    """Return a rank in our words, with the kinds of operations it ever launched."""
    status = said.status
    error = next((code for code in (status.init_state, status.async_error) if code not in FINE), 0)
    counts = sorted((func[:WORD_CHARACTERS], count) for func, count in said.collective_counts.items() if count > 0)
    return RasRank(
        rank=said.rank,
        pid=said.pid,
        host=said.host[:WORD_CHARACTERS],
        state=_state(status),
        error=error,
        counts=tuple(counts[:ROWS]),
    )


def _state(status: _Status) -> RasState:
    """Return what NCCL itself would call it."""
    if status.abort_flag:
        return "abort"
    if status.finalize_called or status.destroy_flag:
        return "finalize"
    return "running" if status.init_state == 0 else "init"


def _usual(rows: Sequence[RasRank]) -> tuple[Count, ...]:
    """Return the counts that most ranks have, all kinds together; of two equally frequent ones the larger."""

    def weight(item: tuple[tuple[Count, ...], int]) -> tuple[int, int]:
        counts, ranks = item
        return ranks, total(counts)

    counted = Counter(row.counts for row in rows)
    return max(counted.items(), key=weight)[0] if counted else ()


def total(counts: Iterable[Count]) -> int:
    """Return the operations of all kinds together."""
    return sum(count for _, count in counts)


def _hash(said: str) -> int:
    try:
        return int(said, 16) & 0xFFFF_FFFF_FFFF_FFFF
    except ValueError:
        return 0
