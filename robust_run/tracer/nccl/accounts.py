"""What a rank's trace has added up, read twice: what it did in between. Pure.

The plugin adds up for each flow where steps spend their time, from its beginning on. So two readings say what went on between
them, however far they are apart, and one that is minutes old is a past to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from robust_run.tracer.nccl.types import NAME_CHARACTERS, Communicator, Direction
from robust_run.tracer.nccl.work import MOST_COMMS, MOST_FLOWS, CommWork, FlowWork, RankWork, joined_channels

#: Of a flow in a rank: `Communicator.serial`, channel, peer, direction.
FlowPlace = tuple[int, int, int, Direction]
#: More step-seconds than this in a flow are nonsense: the file may hold anything.
MOST_S = 1e9
MOST_COUNT = 1 << 53


class FlowAccount(NamedTuple):
    """What a flow has added up since it began."""

    member: int
    done: int
    bytes: int
    closed: int
    """Operations that ended in it."""
    spent_s: tuple[float, float, float]
    """Step-seconds between two rungs each."""
    working_s: float
    """Seconds in which there was any step between the last two."""
    weighed_s: float
    """Until when; monotonic. 0: never."""
    gaps: tuple[int, int, int]
    """Steps that are between two rungs now."""

    def until(self, now_s: float) -> FlowAccount:
        """Return the same, counted until now."""
        passed_s = now_s - self.weighed_s if self.weighed_s else 0.0
        if passed_s <= 0:
            return self
        first, second, third = (spent + gap * passed_s for spent, gap in zip(self.spent_s, self.gaps, strict=True))
        working_s = self.working_s + (passed_s if self.gaps[2] else 0.0)
        return self._replace(spent_s=(first, second, third), working_s=working_s, weighed_s=now_s)


class Accounts(NamedTuple):
    """One reading of a rank's trace."""

    at_s: float
    """Monotonic."""
    pid: int
    busy_s: float
    """For how long its proxy threads had work."""
    ran_s: float
    communicators: Sequence[Communicator]
    flows: Mapping[FlowPlace, FlowAccount]
    """Without those that are done for other processes."""


_NEW = FlowAccount(0, 0, 0, 0, (0.0, 0.0, 0.0), 0.0, 0.0, (0, 0, 0))


def work_between(before: Accounts, now: Accounts, *, rank: int, node: str) -> RankWork | None:
    """Return what a rank did between two readings; None: they do not fit together, or nothing was done."""
    length_s = now.at_s - before.at_s
    if before.pid != now.pid or length_s <= 0:
        return None
    comms = {one.serial: one for one in now.communicators if one.hash and one.closed_s is None}
    flows: dict[int, list[FlowWork]] = {}
    ended: dict[int, int] = {}
    for place, account in now.flows.items():
        comm = comms.get(place[0])
        earlier = before.flows.get(place, _NEW).until(before.at_s)
        found = None if comm is None else _flow(comm, place, earlier, account.until(now.at_s))
        if found is not None:
            flows.setdefault(place[0], []).append(found)
            ended[place[0]] = max(ended.get(place[0], 0), account.closed - earlier.closed)
    busiest = sorted(flows, key=lambda serial: -sum(flow.third_s for flow in flows[serial]))[:MOST_COMMS]
    if not busiest:
        return None
    told = [flow for serial in busiest for flow in joined_channels(flows[serial])]
    return RankWork(
        rank=rank,
        node=node,
        length_s=length_s,
        flows=tuple(sorted(told, key=lambda flow: -flow.steps)[:MOST_FLOWS]),
        comms=tuple(_comm(comms[serial], flows[serial][0].member, ended[serial]) for serial in busiest),
        proxy_busy_s=_seconds(now.busy_s - before.busy_s),
        proxy_ran_s=_seconds(now.ran_s - before.ran_s),
    )


def _flow(comm: Communicator, place: FlowPlace, before: FlowAccount, now: FlowAccount) -> FlowWork | None:
    """Return what went through a flow; None: nothing did."""
    steps = now.done - before.done
    spent = [_seconds(later - earlier) for later, earlier in zip(now.spent_s, before.spent_s, strict=True)]
    if not 0 < steps < MOST_COUNT:
        return None
    moved = min(max(0, now.bytes - before.bytes), MOST_COUNT)
    working_s = _seconds(now.working_s - before.working_s)
    return FlowWork(comm.hash, now.member, place[2], place[3], steps, moved, spent[0], spent[1], spent[2], working_s)


def _comm(comm: Communicator, member: int, ops: int) -> CommWork:
    return CommWork(comm.hash, comm.name[:NAME_CHARACTERS], member, comm.ranks, max(0, ops))


def _seconds(value: float) -> float:
    return min(max(0.0, value), MOST_S)
