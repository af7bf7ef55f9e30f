"""From the bytes of a ring to calls, groups and call sites: what makes no sense is passed over. Pure."""

from __future__ import annotations

import struct

import msgspec

from robust_run.tracer.files.ring_format import DTYPES, OPS, SLOT_BYTES, SLOT_FORMAT, SLOTS, STATES
from robust_run.tracer.types import Group, Op

LARGEST_WORLD = 1 << 20
#: Ranks of all groups of a ring together; beyond it the groups of a garbled table would fill the memory.
MOST_RANKS = 1 << 18
#: A group's time limit above it (some 115 days) is none.
LONGEST_LIMIT_MS = 10_000_000_000
#: Calls that threads of the writer may have begun without having counted them yet.
AHEAD = 1024

SLOT = struct.Struct(SLOT_FORMAT)
ENTERED, ISSUED, WAITING, DONE, FAILED = range(5)
Slot = tuple[int, ...]
(
    ENTERED_FIELD,
    WAIT_FIELD,
    DONE_FIELD,
    NUMEL_FIELD,
    SEQ_FIELD,
    SITE_FIELD,
    PEER_FIELD,
    GROUP_FIELD,
    THREAD_FIELD,
    OP_FIELD,
    STATE_FIELD,
    DTYPE_FIELD,
    SEQ_HIGH_FIELD,
    TAG_FIELD,
    INDEX_FIELD,
) = range(15)


def whole_slots(content: bytes, again: bytes, head: int) -> list[Slot]:
    """Return the slots that were whole while the region was read twice, oldest first."""
    found: list[Slot] = []
    if len(content) != SLOTS * SLOT_BYTES or len(again) != len(content):
        return found
    numbers = memoryview(again).cast("Q")
    for position, slot in enumerate(SLOT.iter_unpack(content)):
        number = slot[INDEX_FIELD]
        if number == 0 or number != numbers[position * 8 + 7] or (number - 1) % SLOTS != position:
            continue
        if number <= head + AHEAD and 0 < slot[OP_FIELD] < len(OPS) and slot[STATE_FIELD] < len(STATES):
            found.append(slot)
    found.sort(key=lambda slot: slot[INDEX_FIELD])
    return found


def chosen(slots: list[Slot], limit: int | None) -> list[Slot]:
    """Return the newest `limit` slots and those before them whose call is not done."""
    if limit is None or limit >= len(slots):
        return slots
    cut = len(slots) - max(0, limit)
    return [slot for slot in slots[:cut] if slot[STATE_FIELD] <= WAITING] + slots[cut:]


def to_op(slot: Slot, groups: dict[int, str], sites: dict[int, str]) -> Op:
    """Return what a slot says, in words."""
    waited, done, dtype = slot[WAIT_FIELD], slot[DONE_FIELD], slot[DTYPE_FIELD]
    return Op(
        group=groups.get(slot[GROUP_FIELD], ""),
        op=OPS[slot[OP_FIELD]],
        seq=slot[SEQ_FIELD] | slot[SEQ_HIGH_FIELD] << 32,  # a group may make 4 billion calls in two months
        state=STATES[slot[STATE_FIELD]],
        at_s=slot[ENTERED_FIELD] / 1e9,
        waiting_at_s=waited / 1e9 if waited else None,
        done_at_s=done / 1e9 if done else None,
        numel=slot[NUMEL_FIELD],
        dtype=DTYPES[dtype] if dtype < len(DTYPES) else "",
        peer=slot[PEER_FIELD],
        site=sites.get(slot[SITE_FIELD], ""),
        thread=slot[THREAD_FIELD],
        tag=slot[TAG_FIELD],
    )


def parse_table(content: bytes) -> tuple[dict[int, Group], dict[int, str]]:
    """Return groups and call sites by their index, as far as the lines make sense."""
    groups: dict[int, Group] = {}
    sites: dict[int, str] = {}
    limits_s: dict[int, float] = {}
    held_s: dict[int, float] = {}
    backends: dict[int, str] = {}
    room = MOST_RANKS
    for line in content.decode("utf-8", errors="replace").split("\n"):
        kind, _, rest = line.partition("\t")
        fields = rest.split("\t")
        index = small_number(fields[0], 1 << 32)
        if index is None:
            continue
        if kind == "s" and len(fields) == 2:
            sites[index] = fields[1]
        elif kind == "g" and len(fields) == 4:
            ranks = parse_ranks(fields[3], room)
            if ranks is not None:
                groups[index] = Group(name=fields[1], desc=fields[2], ranks=ranks)
                room -= len(ranks)
        elif kind == "t" and len(fields) == 2:
            limits_s[index] = (small_number(fields[1], LONGEST_LIMIT_MS) or 0) / 1e3
        elif kind == "l" and len(fields) == 2:
            held_s[index] = (small_number(fields[1], LONGEST_LIMIT_MS) or 0) / 1e3
        elif kind == "b" and len(fields) == 2:
            backends[index] = fields[1]
    for index, group in groups.items():
        groups[index] = msgspec.structs.replace(
            group, limit_s=held_s.get(index) or limits_s.get(index, 0.0), backends=backends.get(index, "")
        )
    return groups, sites


def parse_ranks(text: str, room: int) -> tuple[int, ...] | None:
    """Return the ranks of `0-3,8,16-64/16`; None if that is no such list, or one of more than `room` ranks."""
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        run, _, step_text = part.partition("/")
        first_text, dash, last_text = run.partition("-")
        first = small_number(first_text, LARGEST_WORLD)
        last = small_number(last_text, LARGEST_WORLD) if dash else first
        step = small_number(step_text, LARGEST_WORLD) if step_text else 1
        if first is None or last is None or not step:
            return None
        run_of_ranks = range(first, last + 1, step)
        if len(ranks) + len(run_of_ranks) > room:
            return None
        ranks.extend(run_of_ranks)
    return tuple(ranks)


def small_number(text: str, limit: int) -> int | None:
    """Return a number below `limit` that is written in plain digits."""
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    number = int(text)
    return number if number < limit else None
