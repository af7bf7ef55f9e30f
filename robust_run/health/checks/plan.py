"""Which checks run where, in which order and how long at most. Pure.

A round is one check on all nodes at once: alone, in pairs, or in groups. Neighbours meet in pairs, then in pairs shifted by
one, so that a node with a bad connection is in two bad pairs. All-reduce runs in the groups of `replay.grid`, for the same
reason: the slow node is where slow groups meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.health.checks.replay import grid
from robust_run.health.checks.types import CHECKS, CheckName, CheckProgramOrder, Meeting, NodeFacts

#: Checks of a node alone.
ALONE: frozenset[CheckName] = frozenset(("compute", "model", "memory", "disk"))
#: Checks of each device; the others are of the node.
BY_DEVICE: frozenset[CheckName] = frozenset(("compute", "model"))
#: A check program's start, with the import of torch.
START_S = 4.0
#: Fewer nodes make one group.
LEAST_FOR_GROUPS = 4


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    only: tuple[CheckName, ...] = ()
    """Empty: all."""
    seconds: float = 3.0
    """How long each check measures."""
    passes: int = 3
    """How many passes it makes at least."""
    limit_s: float = 60.0
    """After which a check program is killed."""
    size_bytes: int = 0
    """0: what suits each check."""
    folder: str = ""
    """Of the check `disk`, where a node's facts name none."""
    seed: int = 1


class CheckRound(msgspec.Struct, frozen=True, kw_only=True):
    """One check on all nodes that take part, at the same time."""

    check: CheckName
    number: int
    """Among the rounds of this check."""
    groups: tuple[tuple[str, ...], ...]
    """Nodes that work together; no node is in two of them."""


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds, in order."""

    rounds: tuple[CheckRound, ...]
    left_out: tuple[str, ...]
    """Checks that make no sense here, a sentence each."""
    expected_s: float
    limit_s: float
    """It is over by then, in any case."""


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the processes of a group meet."""

    address: str
    port: int
    listen_fd: int = -1
    """Of the group's first node: a descriptor that listens there."""


def parse_only(text: str) -> tuple[CheckName, ...]:
    """Return the checks of `a,b`, in the order they run in. Raises UserError for an unknown one."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in CHECKS]
    if unknown or not words:
        raise UserError(
            f"--only {text!r}: {', '.join(unknown) or 'nothing'} is no check; there are {', '.join(CHECKS)}"
        )
    return tuple(check for check in CHECKS if check in words)


def plan(nodes: Sequence[NodeFacts], wish: Wish) -> CheckPlan:
    """Return what will be done on these nodes. Raises UserError where two have the same name, or there is none."""
    names = [node.name for node in nodes]
    if not names or len(set(names)) != len(names):
        raise UserError(f"checks need nodes with names of their own, not {', '.join(names) or 'none'}")
    wanted = tuple(check for check in CHECKS if check in wish.only) or CHECKS
    found = {check: rounds_of(check, nodes) for check in wanted}
    rounds = tuple(each for rounds in found.values() for each in rounds)
    left_out = tuple(f"{check}: {why_not(check)}" for check, its_rounds in found.items() if not its_rounds)
    return CheckPlan(
        rounds=rounds,
        left_out=left_out,
        expected_s=len(rounds) * (wish.seconds + START_S),
        limit_s=len(rounds) * wish.limit_s,
    )


def why_not(check: CheckName) -> str:
    """Return why a check has no rounds."""
    return "there is one node" if check != "exchange" else "no node has several devices"


def rounds_of(check: CheckName, nodes: Sequence[NodeFacts]) -> tuple[CheckRound, ...]:
    """Return the rounds of one check on these nodes; none where it makes no sense."""
    names = [node.name for node in nodes]
    if check in ALONE:
        groupings: list[list[tuple[str, ...]]] = [[(name,) for name in names]]
    elif check == "exchange":
        groupings = [[(node.name,) for node in nodes if len(_ranks_of(check, node)) > 1]]
    elif check == "neighbours":
        groupings = _pairs(names)
    else:
        groupings = _groups(names)
    kept = [tuple(tuple(group) for group in grouping) for grouping in groupings if grouping]
    return tuple(CheckRound(check=check, number=number, groups=groups) for number, groups in enumerate(kept))


def orders(
    made: CheckRound, facts: Mapping[str, NodeFacts], wish: Wish, places: Mapping[str, MeetingPlace]
) -> dict[str, tuple[CheckProgramOrder, ...]]:
    """Return what each node is to do in a round. `places`: of each group, by its first node; none for checks alone."""
    found: dict[str, tuple[CheckProgramOrder, ...]] = {}
    for group in made.groups:
        ranks = [(name, device) for name in group for device in _ranks_of(made.check, facts[name])]
        place = places.get(group[0])
        for name in group:
            found[name] = tuple(
                _order(made, facts[name], device, wish, _meeting(rank, ranks, place, facts))
                for rank, (owner, device) in enumerate(ranks)
                if owner == name
            )
    return found


def needs_places(made: CheckRound) -> bool:
    """Whether the processes of this round must find each other."""
    return made.check not in ALONE


def _ranks_of(check: CheckName, node: NodeFacts) -> tuple[str, ...]:
    """Return the devices of a node that take part, a process each."""
    if check in BY_DEVICE or (check not in ALONE and node.devices != ("cpu",)):
        return node.devices
    return ("cpu", "cpu") if check == "exchange" else ("cpu",)


def _order(made: CheckRound, node: NodeFacts, device: str, wish: Wish, meeting: Meeting | None) -> CheckProgramOrder:
    return CheckProgramOrder(
        check=made.check,
        node=node.name,
        device=device,
        seconds=wish.seconds,
        passes=wish.passes,
        size_bytes=wish.size_bytes,
        limit_s=wish.limit_s,
        seed=wish.seed,
        folder=(node.folder or wish.folder) if made.check == "disk" else "",
        round=made.number,
        meeting=meeting if made.check not in ALONE else None,
    )


def _meeting(
    rank: int, ranks: Sequence[tuple[str, str]], place: MeetingPlace | None, facts: Mapping[str, NodeFacts]
) -> Meeting | None:
    if place is None:
        return None
    owner = ranks[rank][0]
    return Meeting(
        rank=rank,
        nodes=tuple(name for name, _ in ranks),
        address=place.address,
        port=place.port,
        interface=facts[owner].interface,
        listen_fd=place.listen_fd if rank == 0 else -1,
    )


def _pairs(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """Return pairs (0, 1), (2, 3)...; then (1, 2), (3, 4)..., closed to a ring: each node is in two of them."""
    count = len(names)
    if count < 2:
        return []
    ring = [(names[index], names[(index + 1) % count]) for index in range(count if count > 2 else 1)]
    last = ring[-1:] if count % 2 and count > 2 else []  # of an odd ring, one pair fits in neither round
    rest = ring[: len(ring) - len(last)]
    return [list(grouping) for grouping in (rest[0::2], rest[1::2], last) if grouping]


def _groups(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    if len(names) < LEAST_FOR_GROUPS:
        return [[tuple(names)]] if len(names) > 1 else []
    made = grid(len(names))
    return [_named(names, made.rows()), _named(names, made.columns())]


def _named(names: Sequence[str], groups: Iterable[tuple[int, ...]]) -> list[tuple[str, ...]]:
    return [tuple(names[index] for index in group) for group in groups if len(group) > 1]
