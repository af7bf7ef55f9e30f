"""Hot lists: from touches to a list, merged over ranks and launches, and from a list to what is fetched in which order. Pure.

A list is kept in quanta of 128 KiB and not in blocks, so it holds for every block size. It is a hint: a wrong one costs bytes
and time, never correctness, and it is clipped to the image it is used for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.rules.types import (
    QUANTUM_BYTES,
    STRETCH_BYTES,
    BlockMap,
    BlockRun,
    HotKey,
    HotList,
    HotRange,
    Touch,
)

#: Of a hot list's file.
LARGEST_LIST_BYTES = 16 << 20
#: Quanta in one list, all ranges together: 512 GiB of hot bytes.
MOST_QUANTA = 1 << 22
MOST_RANGES = 1 << 18
LONGEST_KEY = 128
#: What an unseen quantum keeps of its weight with each launch.
DECAY = 0.5
#: Below this a quantum drops out: after three launches that did not read it.
LEAST_WEIGHT = 0.2
#: First touches within this are one range of the list.
TOGETHER_MS = 100
#: A block is fetched along with its neighbour if it is first touched at most this much later.
NEIGHBOUR_MS = 1000
#: The most that is coalesced into one run.
LARGEST_RUN_BYTES = 8 << 20


def union(recordings: Iterable[Iterable[Touch]]) -> list[Touch]:
    """Return the touches of several ranks or nodes of one launch as one: of each quantum the earliest."""
    first: dict[int, int] = {}
    for recording in recordings:
        for touch in recording:
            if touch.quantum not in first or touch.first_ms < first[touch.quantum]:
                first[touch.quantum] = touch.first_ms
    return [Touch(quantum, first[quantum]) for quantum in sorted(first)]


def merged(old: HotList | None, key: HotKey, touches: Iterable[Touch], window_s: float, launch_id: str = "") -> HotList:
    """Return the list after one more launch. A list of another key or quantum is not continued.

    What was read has weight 1 and the time of this launch; what was not keeps its time and half its weight, and drops out
    below `LEAST_WEIGHT`. With the `launch_id` of the latest launch, this is what another of its nodes read: nothing decays, and
    of what both read the earlier time counts.
    """
    if old is not None and (old.key != key or old.quantum_bytes != QUANTUM_BYTES):
        old = None
    same = old is not None and bool(launch_id) and old.latest == launch_id
    decay = 1.0 if same else DECAY
    quanta = {touch.quantum: (touch.first_ms, 1.0) for touch in touches}
    for quantum, first_ms, weight in _quanta_of(old):
        if quantum not in quanta:
            if weight * decay >= LEAST_WEIGHT:
                quanta[quantum] = (first_ms, weight * decay)
        elif same and weight == 1.0:
            quanta[quantum] = (min(first_ms, quanta[quantum][0]), 1.0)
    return HotList(
        key=key,
        window_s=max(round(window_s, 3), old.window_s if old and same else 0.0),
        launches=(old.launches if old else 0) + (not same),
        latest=launch_id,
        ranges=tuple(_ranges(quanta)),
    )


def _quanta_of(hot: HotList | None) -> Iterable[tuple[int, int, float]]:
    for found in hot.ranges if hot else ():
        for quantum in range(found.start, found.start + found.count):
            yield quantum, found.first_touch_ms, found.weight


def _ranges(quanta: dict[int, tuple[int, float]]) -> list[HotRange]:
    """Neighbours of equal weight that were read together become one range; ranges are in the order of their first touch."""
    ranges: list[HotRange] = []
    start = previous = -2
    first_ms, last_weight = 0, -1.0
    for quantum in sorted(quanta):
        touched_ms, weight = quanta[quantum]
        together = abs(touched_ms - first_ms) <= TOGETHER_MS and weight == last_weight
        if quantum != previous + 1 or not together:
            if previous >= 0:
                ranges.append(HotRange(start, previous - start + 1, first_ms, last_weight))
            start, first_ms, last_weight = quantum, touched_ms, weight
        previous = quantum
    if previous >= 0:
        ranges.append(HotRange(start, previous - start + 1, first_ms, last_weight))
    return sorted(ranges, key=lambda found: (found.first_touch_ms, found.start))


def hot_blocks(hot: HotList, block_map: BlockMap) -> dict[int, int]:
    """Return which blocks of the image are hot, and the first touch of each in milliseconds. What lies outside is left out.

    What is near to what was read counts too: a list is fetched in whole stretches.
    """
    first: dict[int, int] = {}
    for found in hot.ranges:
        begin = found.start * hot.quantum_bytes // STRETCH_BYTES * STRETCH_BYTES
        end = -(-(found.start + found.count) * hot.quantum_bytes // STRETCH_BYTES) * STRETCH_BYTES
        end = min(end, block_map.size_bytes)
        for block in range(begin // block_map.block_bytes, -(-end // block_map.block_bytes) if end > begin else 0):
            if block not in first or found.first_touch_ms < first[block]:
                first[block] = found.first_touch_ms
    return first


def plan(
    hot: HotList,
    block_map: BlockMap,
    have: Callable[[int], bool],
    *,
    limit_bytes: int | None = None,
    run_bytes: int = LARGEST_RUN_BYTES,
) -> list[BlockRun]:
    """Return what to fetch, in the order of first touch, neighbours coalesced to at most `run_bytes`.

    Blocks for which `have` is true are left out. With `limit_bytes` the blocks touched last are left out beyond it.
    """
    first = {block: ms for block, ms in hot_blocks(hot, block_map).items() if not have(block)}
    order = sorted(first, key=lambda block: (first[block], block))
    if limit_bytes is not None:
        order = order[: max(0, limit_bytes) // block_map.block_bytes]
    left = set(order)
    most = max(1, run_bytes // block_map.block_bytes)
    runs = []
    for block in order:
        if block in left:
            start, end = _around(block, left, first, most)
            left.difference_update(range(start, end))
            runs.append(BlockRun(start, end - start, first[block]))
    return runs


def _around(block: int, left: set[int], first: dict[int, int], most: int) -> tuple[int, int]:
    """Extend a block to neighbours that are wanted soon after it: forwards, then backwards."""
    latest = first[block] + NEIGHBOUR_MS
    start, end = block, block + 1
    while end - start < most and end in left and first[end] <= latest:
        end += 1
    while end - start < most and start - 1 in left and first[start - 1] <= latest:
        start -= 1
    return start, end


def hot_bytes(hot: HotList) -> int:
    """Return how many bytes of the image are hot, in quanta."""
    return sum(found.count for found in hot.ranges) * hot.quantum_bytes


def encode(hot: HotList) -> bytes:
    """Return the list's file: JSON with a line per range, for people to read and compare."""
    head = msgspec.json.encode(msgspec.structs.replace(hot, ranges=()))
    assert head.endswith(b'"ranges":[]}')
    rows = b",\n".join(msgspec.json.encode(found) for found in hot.ranges)
    return head.removesuffix(b"]}") + (b"\n" + rows + b"\n" if rows else b"") + b"]}\n"


def decode(data: bytes, name: str = "hot list") -> HotList:
    """Return the list in a file's bytes. `name` is for the message. Raises `HotListRefused` for all that can be wrong with it."""
    if len(data) > LARGEST_LIST_BYTES:
        raise HotListRefused(f"{name}: {len(data)} bytes; at most {LARGEST_LIST_BYTES} are read")
    try:
        found = json_decoder(HotList).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise HotListRefused(f"{name}: {reason}; the next launch records a new one") from error
    return checked(found, name)


def checked(hot: HotList, name: str = "hot list") -> HotList:
    """Return the list as it is. Raises `HotListRefused` where it goes beyond a limit."""
    reason = _what_is_wrong(hot)
    if reason is not None:
        raise HotListRefused(f"{name}: {reason}; the next launch records a new one")
    return hot


def _what_is_wrong(hot: HotList) -> str | None:
    if hot.version != 1:
        return f"version {hot.version} is not known here, only version 1 is"
    if not all(0 < len(text) <= LONGEST_KEY for text in (hot.key.image, hot.key.launch, hot.key.machine)):
        return f"its key has a part that is empty or longer than {LONGEST_KEY}"
    if len(hot.latest) > LONGEST_KEY:
        return f"its latest launch has a name longer than {LONGEST_KEY}"
    if hot.quantum_bytes != QUANTUM_BYTES:
        return f"quantum_bytes is {hot.quantum_bytes}, {QUANTUM_BYTES} is used here"
    if not (math.isfinite(hot.window_s) and 0 <= hot.window_s <= 1e7) or not 0 <= hot.launches <= 1 << 40:
        return f"window_s {hot.window_s} or launches {hot.launches} cannot be"
    if len(hot.ranges) > MOST_RANGES:
        return f"{len(hot.ranges)} ranges; at most {MOST_RANGES} are read"
    total = 0
    for row, found in enumerate(hot.ranges, start=1):
        total += found.count
        sound = 0 <= found.start <= 1 << 40 and 0 < found.count <= MOST_QUANTA and 0 <= found.first_touch_ms <= 1 << 40
        if not sound or not 0.0 < found.weight <= 1.0 or total > MOST_QUANTA:
            return f"range {row} cannot be, or there are more than {MOST_QUANTA} quanta"
    return None
