"""Whose work counts, as the wake chain tells: a log that a side thread writes is no sign that a stuck main thread gets on.

A main thread that waits for no process of this machine gets on when data come, and only then.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from robust_run.tracer.stacks.children import below, children_of
from robust_run.tracer.stacks.normal import A_PROGRAM
from robust_run.tracer.types import ProcessSight, RankSight
from robust_run.tracer.wake.chain import chain_of
from robust_run.tracer.wake.scope import awaited_socket, scope_of
from robust_run.tracer.wake.types import WakeReading
from robust_run.tracer.words import duration

#: A connection on which data came so lately brings the rank on.
COMES_S = 1.0
#: One on which none has come for so long does not: that it is in a download says nothing any more.
SILENT_S = 5.0
#: Places that take long because data come. A rank in a debugger waits for a person.
_FETCHES = frozenset({"a download", "a transfer", A_PROGRAM})


class Heard(NamedTuple):
    """What a connection says that a rank waits on."""

    comes: bool
    words: str


def heard(reading: WakeReading | None, known_long: str) -> Heard | None:
    """Say whether data come on the connection that a rank waits on in the end; None if it waits on none, or it is open.

    `known_long`: the place that takes long in which it is; silence counts only there, where it would count as work.
    """
    chain = chain_of(reading) if reading is not None else None
    if reading is None or chain is None:
        return None
    found = awaited_socket(reading, chain.links[-1].pid)
    if found is None or found.quiet_s is None or found.received_bytes is None:
        return None
    if found.received_bytes and found.quiet_s < COMES_S:
        return Heard(True, f"receives data from {found.there}")
    if known_long in _FETCHES and found.quiet_s >= SILENT_S:
        silence = f"no byte for {duration(found.quiet_s)}" if found.received_bytes else "which has sent nothing yet"
        return Heard(False, f"waiting for data from {found.there}, {silence}")
    return None


def counted(sight: RankSight, rank: ProcessSight) -> tuple[ProcessSight, tuple[ProcessSight, ...]]:
    """Return the rank and its children, as far as their work counts."""
    children = children_of(sight)
    scope = scope_of(sight.wake)
    if scope is None:
        return rank, children
    if not scope.threads and rank.main is not None:
        used = rank.main
        rank = msgspec.structs.replace(rank, cpu=used.cpu, io_bytes=used.io_bytes, starved=used.starved)
    if scope.threads:
        return rank, children  # a thread may wait for any of them
    wanted = {one.pid for pid in scope.pids for one in below(pid, children)} | scope.pids
    return rank, tuple(child for child in children if child.pid in wanted)
