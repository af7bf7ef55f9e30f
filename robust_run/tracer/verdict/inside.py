"""What NCCL's traces say of a scene: which ranks wait inside NCCL, in what and for whom, and who keeps them. Pure.

On NCCL the CPU goes on as soon as a call is enqueued, so rings show no rank waiting; here the flows do. A rank waits where it has
something left to do in a call and nothing has happened in it for a second. Communicators get the names of the rings'
groups where their members are the same, so that one word is used for one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from robust_run.tracer.nccl.cut import restored
from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.teams import Team, TeamFlow, teams_of
from robust_run.tracer.nccl.types import NcclDiagnosis, NcclSight, NcclTrace
from robust_run.tracer.nccl.words import func_name
from robust_run.tracer.types import Group, RankSight, Scene
from robust_run.tracer.verdict.types import WaitPlace
from robust_run.tracer.words import span


class Naming:
    """The groups and names of the communicators of a scene: torch's process groups are the same thing under another name.

    A communicator belongs to the group whose members are its members, in the same order; of several such groups, to the one that
    it is named after. What belongs to none keeps the name that NCCL was told (torch: the group's description).
    """

    def __init__(self, teams: Iterable[Team], groups: Sequence[Group], label: Callable[[Group], str]) -> None:
        self._groups: dict[int, Group] = {}
        self._names: dict[int, str] = {}
        self._whole: set[int] = set()
        by_size: dict[int, list[Group]] = {}
        for group in groups:
            by_size.setdefault(len(group.ranks), []).append(group)
        for team in teams:
            found = _fitting(team, by_size.get(team.size, ()))
            worlds = tuple(sorted(member.sight.rank for member in team.members.values()))
            own = next((of.communicator.name for of in team.members.values() if of.communicator.name), "")
            if found is not None:
                self._whole.add(team.hash)
                self._groups[team.hash], name = found, label(found).removeprefix("group ")
            else:
                self._groups[team.hash] = Group(name=f"{team.hash:x}", desc=own, ranks=worlds)
                name = label(self._groups[team.hash]).removeprefix("group ")
                part_of = any(own in (group.name, group.desc) for group in groups) if own else False
                name = f"{name} (ranks {span(worlds)})" if part_of and "(" not in name else name
            self._names[team.hash] = name

    def name(self, team: int, otherwise: str) -> str:
        """Return what people call a communicator, in a sentence after `of`."""
        return self._names.get(team, otherwise)

    def group(self, team: int) -> Group:
        """Return the group of a communicator: the program's, or one made up of the members that are known."""
        return self._groups[team]

    def is_whole(self, team: int) -> bool:
        """Tell whether that is a group of the program, of which all members are known."""
        return team in self._whole

    def group_named(self, name: str) -> Group | None:
        """Return the group of the communicator that is called so."""
        return next((self._groups[team] for team, known in self._names.items() if known == name), None)


def _fitting(team: Team, groups: Iterable[Group]) -> Group | None:
    """Return the group that a communicator was made for."""
    own = {member.communicator.name for member in team.members.values()} - {""}
    fitting = [
        group
        for group in groups
        if all(
            number < len(group.ranks) and group.ranks[number] == of.sight.rank for number, of in team.members.items()
        )
    ]
    named = [group for group in fitting if own & {group.name, group.desc}]
    return next(iter(named or fitting), None)


#: A rank whose newest event is older than this waits, if something is in flight.
STILL_S = 1.0
#: A post-mortem holds up what comes next, so those of more flows than this are made without NCCL's traces.
DEAD_FLOWS = 1 << 15
#: Of the point-to-point calls that one rank waits in, so many are told.
_CALLS = 4

Label = Callable[[Group], str]


class NcclScene:
    """NCCL's part of a scene."""

    def __init__(self, scene: Scene, groups: Sequence[Group], label: Label, failed: bool) -> None:
        self._scene = scene
        self._by_rank = {sight.rank: sight for sight in scene.ranks}
        sights = [_nccl_sight(sight, failed) for sight in scene.ranks]
        self._naming = Naming(teams_of(sights).values(), groups, label)
        self.sights = [self._renamed(sight) for sight in sights]
        self._teams = teams_of(self.sights)

    @staticmethod
    def of(scene: Scene, groups: Sequence[Group], label: Label, *, failed: bool) -> NcclScene | None:
        """Return what traces say, None if there are none."""
        traces = [sight.nccl for sight in scene.ranks if sight.nccl is not None]
        if not traces or (failed and sum(len(trace.flows) for trace in traces) > DEAD_FLOWS):
            return None
        return NcclScene(scene, groups, label, failed)

    def _renamed(self, sight: NcclSight) -> NcclSight:
        trace = sight.trace
        if trace is None:
            return sight
        named = tuple(
            msgspec.structs.replace(one, name=self._naming.name(one.hash, one.name)) for one in trace.communicators
        )
        return msgspec.structs.replace(sight, trace=msgspec.structs.replace(trace, communicators=named))

    @cached_property
    def diagnosis(self) -> NcclDiagnosis:
        """Who keeps whom waiting inside NCCL."""
        return diagnose(self.sights)

    @cached_property
    def awaited(self) -> dict[int, tuple[int, ...]]:
        """Of each rank that waits inside NCCL the peers that it waits for."""
        found: dict[int, tuple[int, ...]] = {}
        for wait in self.diagnosis.waits:
            found[wait.waiter] = (*found.get(wait.waiter, ()), wait.awaited)
        return found

    @property
    def names(self) -> dict[int, str]:
        """What people call the communicators, by their hash."""
        return {team.hash: team.name for team in self._teams.values()}

    def group_of(self, name: str) -> Group | None:
        """Return the group of the communicator that a fault names."""
        return self._naming.group_named(name)

    @cached_property
    def waiting(self) -> dict[int, float]:
        """Of each rank that waits inside NCCL since when."""
        return {rank: since_s for rank in self._by_rank if (since_s := self._since_s(rank)) is not None}

    def _since_s(self, rank: int) -> float | None:
        """Return when anything last happened to what a rank has in flight; None: nothing is, or it happened just now."""
        sight = self._by_rank.get(rank)
        if sight is None or sight.nccl is None or sight.nccl.glance.event_s is None:
            return None
        if not any(flow.open_ops for flow in sight.nccl.flows):
            return None
        event_s = sight.nccl.glance.event_s + sight.nccl_shift_s
        until_s = self._scene.at_s if sight.ended_at_s is None else sight.ended_at_s
        return event_s if until_s - event_s >= STILL_S else None

    def places(self, elsewhere: set[int]) -> tuple[WaitPlace, ...]:
        """Return the calls that ranks wait in inside NCCL, without the ranks that are known to wait `elsewhere`."""
        waiters = self.waiting.keys() - elsewhere
        return tuple(place for team in self._teams.values() for place in self._of_team(team, waiters))

    def _of_team(self, team: Team, waiters: set[int]) -> Iterable[WaitPlace]:
        """Return the calls of one communicator: of each rank the oldest that it is in."""
        first: dict[int, list[TeamFlow]] = {}
        for seen in team.flows.values():
            if seen.pending and not seen.moved and seen.world in waiters:
                known = first.setdefault(seen.world, [])
                if known and _number(seen) < _number(known[0]):
                    known.clear()
                if not known or seen.p2p or _number(seen) == _number(known[0]):
                    known.append(seen)
        collectives: dict[tuple[str, int], list[int]] = {}
        for rank, flows in first.items():
            lead = min(flows, key=_number)
            if lead.p2p:
                yield from self._pairs(team, [of for of in flows if of.p2p], self.waiting[rank])
            else:
                collectives.setdefault((lead.func, lead.flow.op_seq), []).append(rank)
        for (func, seq), ranks in collectives.items():
            yield WaitPlace(
                group=self._naming.group(team.hash),
                op=func_name(func),
                seq=seq,
                waiters=tuple(sorted(ranks)),
                missing=self._missing(team, func, seq),
                since_s=min(self.waiting[rank] for rank in ranks),
                inside=True,
            )

    def _missing(self, team: Team, func: str, seq: int) -> tuple[int, ...]:
        """Return who has not made a call. One that is seen but whose NCCL is not traced may have."""
        if not func:
            return ()
        behind = {of.sight.rank for of in team.members.values() if of.latest.get(func, -1) < seq}
        known = {of.sight.rank for of in team.members.values()}
        for rank in self._naming.group(team.hash).ranks if self._naming.is_whole(team.hash) else ():
            sight = self._by_rank.get(rank)
            if rank not in known and (sight is None or sight.nccl is not None):
                behind.add(rank)
        return tuple(sorted(behind))

    def _pairs(self, team: Team, flows: Sequence[TeamFlow], since_s: float) -> Iterable[WaitPlace]:
        """Return the point-to-point calls that a rank waits in, first those whose peer has not come."""
        found: dict[tuple[str, int], WaitPlace] = {}
        for seen in flows:
            peer = team.world_of(seen.flow.peer)
            if peer is None:
                continue
            other = team.other_end(seen)
            found.setdefault(
                (seen.flow.direction, peer),
                WaitPlace(
                    group=self._naming.group(team.hash),
                    op=seen.flow.direction,
                    seq=seen.flow.op_seq,
                    peer=peer,
                    waiters=(seen.world,),
                    missing=() if other is not None and other.pending else (peer,),
                    since_s=since_s,
                    inside=True,
                ),
            )
        return sorted(found.values(), key=lambda place: not place.missing)[:_CALLS]


def _number(seen: TeamFlow) -> int:
    return -1 if seen.flow.op is None else seen.flow.op


def _nccl_sight(sight: RankSight, failed: bool) -> NcclSight:
    """Return a rank as the rules of NCCL want it. Of an attempt that is over every rank counts as it was when it died."""
    gone = any(process.is_rank and process.state in ("Z", "X") for process in sight.processes)
    trace: NcclTrace | None = sight.nccl
    return NcclSight(
        rank=sight.rank,
        node=sight.node,
        trace=trace,
        before=None if trace is None else restored(trace, sight.nccl_before),
        alive=failed or (sight.exit_code is None and sight.ended_at_s is None and not gone),
        shift_s=sight.nccl_shift_s,
    )
