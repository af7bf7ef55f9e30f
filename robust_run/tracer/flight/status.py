"""What torch's recorder says at a glance, in our words: `pg_status` of its JSON, from torch 2.6 on. Never raises.

Numbers are strings in all versions that write JSON; a group that no operation was recorded of is not listed; `pg_config` lists
names, but not the numbers that `pg_status` has for keys. Those that belong together are in the entries (`pg_id`,
`process_group`), which cost ten thousand times as much, so names are learnt once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.tracer.flight.types import GroupClock, GroupName

#: Groups of one rank that are looked at: the newest.
MOST_GROUPS = 64
NAME_CHARACTERS = 100
LARGEST = 1 << 62


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class _Statuses(msgspec.Struct):
    pg_status: dict[str, _Status] = {}


class _Entry(msgspec.Struct):
    pg_id: int = -1
    process_group: list[str] = []
    collective_seq_id: int = 0
    op_id: int = 0
    is_p2p: bool = False


class _Entries(msgspec.Struct):
    entries: list[_Entry] = []


def parse_status(content: bytes, *, on_nccl: bool) -> tuple[GroupClock, ...] | None:
    """Return how far a rank is in each group that this recorder knows; None if that is no answer of a recorder."""
    try:
        found = json_decoder(_Statuses, strict=False).decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    clocks = [
        _clock(int(number), status, on_nccl)
        for number, status in found.pg_status.items()
        if number.isascii() and number.isdigit() and len(number) < 10
    ]
    return tuple(sorted(clocks, key=lambda clock: clock.pg)[-MOST_GROUPS:])


def _clock(number: int, status: _Status, on_nccl: bool) -> GroupClock:
    return GroupClock(
        pg=number,
        enqueued=_bounded(status.last_enqueued_collective),
        started=_bounded(status.last_started_collective),
        completed=_bounded(status.last_completed_collective),
        on_nccl=on_nccl,
    )


def _bounded(value: int) -> int:
    return max(-1, min(value, LARGEST))


def parse_names(content: bytes, *, on_nccl: bool) -> tuple[GroupName, ...]:
    """Return what the groups are called that the entries of a whole dump belong to."""
    try:
        found = json_decoder(_Entries, strict=False).decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    return names_of(found.entries, on_nccl=on_nccl)


def names_of(entries: Iterable[_Entry], *, on_nccl: bool) -> tuple[GroupName, ...]:
    """Return the names of the groups that entries are of."""
    names: dict[int, GroupName] = {}
    for entry in entries:
        if entry.pg_id < 0 or not entry.process_group:
            continue
        # gloo records no sends, but counts them: then operations have higher numbers than collectives.
        has_p2p = entry.is_p2p or (not on_nccl and entry.op_id > entry.collective_seq_id)
        known = names.get(entry.pg_id)
        if known is None or (has_p2p and not known.has_p2p):
            name = entry.process_group[0][:NAME_CHARACTERS]
            names[entry.pg_id] = GroupName(on_nccl=on_nccl, pg=entry.pg_id, name=name, has_p2p=has_p2p)
    return tuple(names[number] for number in sorted(names)[-MOST_GROUPS:])
