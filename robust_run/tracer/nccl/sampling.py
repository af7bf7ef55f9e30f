"""Which ranks to watch, and when what they do calls for a look at all (Mycroft, arXiv 2509.03018, section 4.1). Pure.

Ten ranks of a job are watched at the most, spread over its nodes and data-parallel groups; which ones changes from turn to turn.
A look at all is called for when a watched rank has operations in flight and completes none in a window, or when its throughput
halves or the interval between its operations doubles.
"""

from __future__ import annotations

from collections import deque

import msgspec

from robust_run.tracer.nccl.types import NcclTrace

#: Ranks that are watched at the same time.
MOST = 10
#: How long a window is.
WINDOW_S = 10.0
#: What is usual is the median of so many windows in which something was completed; with fewer than `FEWEST` nothing is slow.
WINDOWS = 30
FEWEST = 3
#: Slow is so much less throughput, or so much longer an interval, than usual.
FACTOR = 2.0


class SampleWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did in a window."""

    length_s: float
    completed: int
    """Operations."""
    bytes: int
    """That these sent and received; 0: not known (interface v3)."""
    in_flight: bool
    """Something is, at the end."""


def sampled_ranks(world_size: int, per_node: int, turn: int = 0, most: int = MOST) -> tuple[int, ...]:
    """Return the ranks of a job to watch, `most` at the most: every node's agent finds the same without asking.

    They are spread over the nodes, and over the places within a node: ranks at the same place of all nodes are mostly one group
    of data parallelism. With another `turn` it is other places, and other nodes where there are more than `most`.
    """
    per_node = max(1, min(per_node, world_size))
    nodes, count = -(-world_size // per_node), min(most, world_size)
    spread = min(nodes, count)
    chosen: set[int] = set()
    for number in range(world_size + count):
        if len(chosen) == count:
            break
        lap, place = divmod(number, spread)
        node = (place * nodes // spread + turn) % nodes
        first, size = node * per_node, min(per_node, world_size - node * per_node)
        for shift in range(size):  # the first place on the node that is not taken
            rank = first + (place + lap * spread + turn + turn // nodes + shift) % size
            if rank not in chosen:
                chosen.add(rank)
                break
    return tuple(sorted(chosen))


def window(before: NcclTrace, now: NcclTrace, length_s: float) -> SampleWindow:
    """Return what a rank did between two readings of its trace that are `length_s` apart."""
    ended = {op.number for op in before.ops if op.opened and op.closed >= op.opened}
    known = before.ops[0].number if before.ops else 0
    fresh = [
        op for op in now.ops if op.opened and op.closed >= op.opened and op.number not in ended and op.number >= known
    ]
    made = now.glance.ops - before.glance.ops
    if made > len(now.ops) > 0:  # only the newest are seen: what they did, they did in their part of the time
        length_s *= len(now.ops) / made
    return SampleWindow(
        length_s=length_s,
        completed=len(fresh),
        bytes=sum(op.sent_bytes + op.received_bytes for op in fresh),
        in_flight=any(flow.open_ops for flow in now.flows),
    )


class Trigger:
    """Watches one rank, window after window."""

    def __init__(self) -> None:
        self._usual: deque[SampleWindow] = deque(maxlen=WINDOWS)

    def look(self, seen: SampleWindow) -> str:
        """Take in a window. Return why to look at all ranks, as a clause; empty: nothing calls for it."""
        reason = self._hang(seen) or self._slow(seen)
        if seen.completed:  # a slow one, too: what lasts becomes usual
            self._usual.append(seen)
        return reason

    def _hang(self, seen: SampleWindow) -> str:
        if seen.in_flight and not seen.completed:
            return f"no operation was completed in {seen.length_s:g} s while some are in flight"
        return ""

    def _slow(self, seen: SampleWindow) -> str:
        if not seen.completed or len(self._usual) < FEWEST:
            return ""
        rates = sorted(of.bytes / of.length_s for of in self._usual)
        gaps = sorted(of.length_s / of.completed for of in self._usual)
        rate, gap = rates[len(rates) // 2], gaps[len(gaps) // 2]
        if rate and seen.bytes / seen.length_s < rate / FACTOR:
            return f"{seen.bytes / seen.length_s / 1e6:.3g} MB/s where {rate / 1e6:.3g} MB/s are usual"
        if seen.length_s / seen.completed > gap * FACTOR:
            return f"an operation every {seen.length_s / seen.completed:.3g} s where one every {gap:.3g} s is usual"
        return ""
