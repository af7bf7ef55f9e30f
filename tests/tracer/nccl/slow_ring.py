"""A model of the times of one collective: chunks that go round a ring of ranks, each with a GPU, a proxy thread and a NIC.

A connection is a window of eight buffers at either end. GPUs fill and empty them, proxy threads offer, send and take note, the
wire carries one chunk after the other. What the plugin writes down is when a proxy thread noticed a thing, not when it happened.
Pure arithmetic: each time is the latest of what it waits for. It knows nothing of the rules under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WINDOW = 8
Wake = Callable[[float], float]


@dataclass
class Side:
    """What was counted at one end of a connection in one collective: as in `FlowWork`."""

    steps: int = 0
    first_s: float = 0.0
    second_s: float = 0.0
    third_s: float = 0.0
    working_s: float = 0.0
    until_s: float = field(default=0.0, repr=False)

    def add(self, posted: float, ready: float, sent: float, done: float) -> None:
        """Count a chunk by when it reached each of its four rungs."""
        self.steps += 1
        self.first_s += ready - posted
        self.second_s += sent - ready
        self.third_s += done - sent
        self.working_s += max(0.0, done - max(sent, self.until_s))
        self.until_s = max(self.until_s, done)


@dataclass(frozen=True)
class Member:
    """One rank in one collective."""

    offered_at_s: float
    """When its proxy thread was given the operation."""
    gpu_at_s: float
    """When its GPU comes to it."""
    gpu_s: float
    """What its GPU needs for a chunk."""
    wire_s: float
    """What the way to the next member needs for a chunk."""
    flush_s: float
    wake: Wake | None = None
    """When its proxy thread notices what happens at a time; None: at once."""
    accepts: int = WINDOW
    """Chunks that its NIC takes before the first of them is delivered."""


@dataclass
class Passed:
    """How a collective went, by member."""

    ended_s: list[float]
    sends: list[Side]
    receives: list[Side]


def at_once(at_s: float) -> float:
    """A proxy thread that spins."""
    return at_s


def sleeping(begin_s: float, length_s: float) -> Wake:
    """A proxy thread that sleeps once."""
    end_s = begin_s + length_s
    return lambda at_s: end_s if begin_s <= at_s < end_s else at_s


def starved(every_s: float, phase_s: float) -> Wake:
    """A proxy thread that gets a CPU only now and then."""
    return lambda at_s: at_s + (phase_s - at_s) % every_s


def pass_round(members: Sequence[Member], chunks: int, noise: Callable[[], float]) -> Passed:
    """Let so many chunks pass each connection of the ring. `noise`: by how much one more chunk differs, about 1."""
    count = len(members)
    following = [(place + 1) % count for place in range(count)]
    wakes = [member.wake or at_once for member in members]
    gpu_at = [member.gpu_at_s for member in members]
    wire_at, sent_at = [0.0] * count, [0.0] * count
    done: list[list[float]] = [[] for _ in members]
    consumed: list[list[float]] = [[] for _ in members]
    came: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * count  # of the newest chunk: offered, arrived, flushed
    out = Passed([0.0] * count, [Side() for _ in members], [Side() for _ in members])
    for chunk in range(chunks + 1):
        ready, posted = [0.0] * count, [0.0] * count
        for place, member in enumerate(members):
            at = gpu_at[place]
            if chunk:
                at = max(at, came[place][2])
            if chunk < chunks:
                posted[place] = member.offered_at_s if chunk < WINDOW else done[place][chunk - WINDOW]
                at = max(at, posted[place])
            gpu_at[place] = at = at + member.gpu_s
            ready[place] = seen = wakes[place](at)
            if chunk:
                consumed[place].append(seen)
                out.receives[place].add(*came[place], seen)
        if chunk == chunks:
            break
        for place, member in enumerate(members):
            target = following[place]
            offered = members[target].offered_at_s if chunk < WINDOW else consumed[target][chunk - WINDOW]
            sent = max(ready[place], offered, sent_at[place])
            if chunk >= member.accepts:
                sent = max(sent, done[place][chunk - member.accepts])
            sent_at[place] = sent = wakes[place](sent)
            wire_at[place] = there = max(sent, wire_at[place]) + member.wire_s * noise()
            done[place].append(wakes[place](there))
            out.sends[place].add(posted[place], ready[place], sent, done[place][-1])
            arrived = wakes[target](there)
            came[target] = offered, arrived, wakes[target](arrived + members[target].flush_s)
    out.ended_s = [max(gpu_at[place], done[place][-1]) for place in range(count)]
    return out
