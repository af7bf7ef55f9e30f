"""Signs of slowness in one window of one communicator: wires, GPUs and proxy threads that are slower than they were, and than
their peers. Pure.

After Mycroft (arXiv 2509.03018, section 5.3), by where steps spend their time:

- A wire: the time for which there is something under way, by step. How much waits for it makes no difference to that.
- A GPU: how long data is there that it does not take, while its own data is not held up (it comes late to the operation).
- A proxy thread: for how much of the time in which it had work it did not run.

What all have alike (a busy fabric, larger messages) is divided out: a wire is compared with its own past, and that with how the
other wires of the communicator compare with theirs. So a way that was always longer than others is not slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from robust_run.tracer.nccl.work import FlowWork, RankWork, joined_flows

#: A wire is slow that takes so many times as long as it did, against how the others changed.
WIRE_FACTOR = 1.35
#: A GPU is late by so much of the time between two operations, and so many times as much as is usual for anybody here.
LATE_SHARE, LATE_FACTOR = 0.03, 1.5
#: A proxy thread does not run for so much more of its time than the others, and than it did.
IDLE_SHARE = 0.08


class MemberWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did in one communicator in a window."""

    rank: int
    node: str
    comm: int
    name: str
    member: int
    ranks: int | None
    length_s: float
    ops: int
    sends: tuple[FlowWork, ...]
    receives: tuple[FlowWork, ...]
    busy_s: float
    """For how long its proxy threads had work; 0: not known."""
    ran_s: float

    @property
    def ran_share(self) -> float | None:
        """Part of the time with work for which its proxy threads ran; None: not known."""
        return self.ran_s / self.busy_s if self.busy_s else None

    def joined(self, later: MemberWork) -> MemberWork:
        """Return what it did in this window and a later one."""
        return msgspec.structs.replace(
            later,
            length_s=self.length_s + later.length_s,
            ops=self.ops + later.ops,
            sends=joined_flows((*self.sends, *later.sends)),
            receives=joined_flows((*self.receives, *later.receives)),
            busy_s=self.busy_s + later.busy_s,
            ran_s=self.ran_s + later.ran_s,
        )

    @property
    def period_s(self) -> float:
        """Time between two operations."""
        return self.length_s / max(self.ops, 1)

    @property
    def late_s(self) -> float:
        """By how much, an operation, its GPU kept data waiting that was there, and was not itself kept from sending."""
        here_s = max((flow.working_s / max(flow.channels, 1) for flow in self.receives), default=0.0)
        held_s = sum(flow.second_s / max(flow.channels, 1) for flow in self.sends)
        return max(0.0, here_s - held_s) / max(self.ops, 1)

    @property
    def step_s(self) -> float:
        """How long a step of what it sends takes from end to end, buffers and all: what shows any slowness of anybody."""
        steps = sum(flow.steps for flow in self.sends)
        return sum(flow.first_s + flow.second_s + flow.third_s for flow in self.sends) / steps if steps else 0.0

    @property
    def wire_s(self) -> float:
        """For how long a step that it sends is under way, on its slowest wire."""
        return max((flow.working_s / flow.steps for flow in self.sends), default=0.0)


Key = TypeVar("Key")


class Wire(NamedTuple):
    """From a rank of the world to another."""

    sender: int
    receiver: int

    @property
    def back(self) -> Wire:
        """The way back."""
        return Wire(self.receiver, self.sender)


class Sign(NamedTuple):
    """Something that is slow in this window."""

    cost_s: float
    """An operation."""
    times: float
    """How many times as long it takes as usual; of a proxy thread the part of its time for which it did not run."""
    words: str


class Signs(NamedTuple):
    """What is slow in a communicator in a window."""

    wires: Mapping[Wire, Sign]
    gpus: Mapping[int, Sign]
    proxies: Mapping[int, Sign]


NONE = Signs({}, {}, {})


def by_comm(works: Iterable[RankWork]) -> dict[int, list[MemberWork]]:
    """Return what ranks did, by communicator."""
    found: dict[int, list[MemberWork]] = {}
    for work in works:
        for comm in work.comms:
            flows = [flow for flow in work.flows if flow.comm == comm.hash and flow.steps]
            if flows:
                member = MemberWork(
                    rank=work.rank,
                    node=work.node,
                    comm=comm.hash,
                    name=comm.name,
                    member=comm.member,
                    ranks=comm.ranks,
                    length_s=work.length_s,
                    ops=comm.ops,
                    sends=tuple(flow for flow in flows if flow.direction == "send"),
                    receives=tuple(flow for flow in flows if flow.direction == "recv"),
                    busy_s=work.proxy_busy_s,
                    ran_s=work.proxy_ran_s,
                )
                found.setdefault(comm.hash, []).append(member)
    return found


def latenesses(now: Sequence[MemberWork]) -> dict[int, float]:
    """Return by how much each member's GPU came later than those of the others, by rank."""
    late = {member.rank: member.late_s for member in now}
    return {rank: late[rank] - others_s for rank, others_s in _of_others(late).items()}


def _of_others(values: Mapping[Key, float]) -> dict[Key, float]:
    """Return for each value the (lower) median of all others; nothing where there is one alone."""
    if len(values) < 2:
        return {}
    ordered = sorted(values, key=lambda key: values[key])
    middle = (len(ordered) - 2) // 2
    return {key: values[ordered[middle + 1 if place <= middle else middle]] for place, key in enumerate(ordered)}


def signs(now: Sequence[MemberWork], past: Mapping[int, MemberWork], usual_late_s: float) -> Signs:
    """Return what is slow among all members of a communicator.

    `past`: what they did before, by rank of the world; `usual_late_s`: by how much one is later than the others now and then.
    Nothing is where the past of one is not known.
    """
    if len(now) < 2 or any(member.rank not in past for member in now):
        return NONE
    period_s = median(member.period_s for member in now)
    return Signs(_wires(now, past), _gpus(now, past, usual_late_s, period_s), _proxies(now, past))


# ---- wires
def _wires(now: Sequence[MemberWork], past: Mapping[int, MemberWork]) -> dict[Wire, Sign]:
    taken, then = steps_of(now), steps_of(list(past.values()))
    known = {wire: took.step_s / then[wire].step_s for wire, took in taken.items() if wire in then}
    found = {}
    for wire, drift in _of_others(known).items():
        usual_s, took_s = then[wire].step_s * max(1.0, drift), taken[wire].step_s
        if took_s >= WIRE_FACTOR * usual_s:
            cost_s = (took_s - usual_s) * taken[wire].steps
            found[wire] = Sign(cost_s, took_s / usual_s, way_words(wire, took_s, usual_s))
    return found


def way_words(wire: Wire, took_s: float, usual_s: float) -> str:
    """Return how long steps are under way, and how long they were."""
    return f"a step is under way for {_ms(took_s)} from rank {wire.sender} to rank {wire.receiver}, {_ms(usual_s)} are usual"


class _Step(NamedTuple):
    step_s: float
    """For how long a step is under way, as long as there is one."""
    steps: float
    """On each channel, an operation."""


def steps_of(members: Sequence[MemberWork]) -> dict[Wire, _Step]:
    """Return how long steps take from each member to the next."""
    world = {member.member: member.rank for member in members}
    return {
        Wire(member.rank, world[flow.peer]): _Step(
            flow.working_s / flow.steps, flow.steps / max(member.ops, 1) / max(flow.channels, 1)
        )
        for member in members
        for flow in member.sends
        if flow.peer in world and flow.working_s > 0
    }


# ---- GPUs
def _gpus(
    now: Sequence[MemberWork], past: Mapping[int, MemberWork], usual_late_s: float, period_s: float
) -> dict[int, Sign]:
    more = {member.rank: member.late_s - past[member.rank].late_s for member in now}
    others_s, found = _of_others(more), {}
    for member in now:
        by_s = more[member.rank] - max(others_s[member.rank], 0.0)
        if by_s >= max(LATE_SHARE * period_s, LATE_FACTOR * usual_late_s):
            words = f"data waits {_ms(member.late_s)} an operation for the GPU of rank {member.rank}"
            found[member.rank] = Sign(by_s, member.late_s / max(member.late_s - by_s, 1e-6), words)
    return found


# ---- proxy threads
def _proxies(now: Sequence[MemberWork], past: Mapping[int, MemberWork]) -> dict[int, Sign]:
    ran = {member.rank: member.ran_share for member in now if member.ran_share is not None}
    others, found = _of_others(ran), {}
    for member in now:
        if member.rank not in others:
            continue
        mine, before = ran[member.rank], past[member.rank].ran_share
        usual = min(others[member.rank], before if before is not None else 1.0)
        if usual - mine >= IDLE_SHARE:
            words = (
                f"the proxy thread of rank {member.rank} ran for {mine:.0%} of the time in which it had work, "
                f"{usual:.0%} is usual"
            )
            found[member.rank] = Sign((usual - mine) * member.busy_s / max(member.ops, 1), usual - mine, words)
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
