"""From evidence to a verdict: who is at fault, in what, and how that is known. Pure functions over recorded scenes.

The rules are asked in this order: processes that are gone or stopped (`ended`), different calls at one place (`signatures`),
circles of waits (`order`), what stands still inside NCCL (`nccl`), ranks that never came (`absent`), communication that does not
move (`stall`). No rule knows a
clock, a file or a process, so every verdict can be reached again from the evidence in an incident file.
"""

from __future__ import annotations

import msgspec

from robust_run.tracer.types import Scene, Wait
from robust_run.tracer.verdict.after import post_mortem
from robust_run.tracer.verdict.chains import RankChain, RankChains, all_chains
from robust_run.tracer.verdict.decide import look, look_at_leftovers
from robust_run.tracer.verdict.draft import describe, waits_of
from robust_run.tracer.verdict.graph import sinks
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.rules import nccl
from robust_run.tracer.verdict.types import RankPatience
from robust_run.tracer.verdict.wake import chains_of
from robust_run.tracer.wake.types import WakeChain

__all__ = [
    "ParallelGroup",
    "RankChain",
    "RankChains",
    "RankPatience",
    "SceneView",
    "chains",
    "communicator_names",
    "describe_inside",
    "describe_waits",
    "look",
    "look_at_leftovers",
    "parallel_groups",
    "post_mortem",
    "seen",
    "waits",
]


class ParallelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group of the program, as people know it."""

    name: str
    label: str
    """`group dp_1`, `group 3 (ranks 0,4)`, `the world`."""
    ranks: tuple[int, ...]


class SceneView(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows of a scene."""

    waits: tuple[Wait, ...] = ()
    groups: tuple[ParallelGroup, ...] = ()
    inside: tuple[str, ...] = ()
    """Lines about what stands still inside NCCL."""
    chains: tuple[tuple[int, WakeChain], ...] = ()
    """What ranks wait for that others wait for, and that wait in no call."""
    lines: tuple[str, ...] = ()
    """Who waits for whom, over ranks and hosts, to what is waited for in the end: a line for each that is waited for."""


def seen(scene: Scene, limit: int = 20) -> SceneView:
    """Return waits, groups and at most `limit` lines about NCCL at once: of 10,000 ranks, indexing a scene takes seconds."""
    picture = Picture(scene)
    return SceneView(
        waits=waits_of(picture),
        groups=_groups_of(picture),
        inside=tuple(nccl.lines(picture, limit)),
        chains=chains_of(picture, sorted(sinks(picture))),
        lines=tuple(all_chains(picture).lines),
    )


def chains(scene: Scene) -> RankChains:
    """Return who waits for whom, over ranks and hosts, to what is waited for in the end."""
    return all_chains(Picture(scene))


def waits(scene: Scene) -> tuple[Wait, ...]:
    """Return who waits for whom, longest first. No rank is awaited where all have come."""
    return waits_of(Picture(scene))


def describe_waits(scene: Scene, limit: int = 40) -> list[str]:
    """Return lines for people, one for each call that ranks wait in, longest first; at most `limit`."""
    return describe(Picture(scene), limit)


def describe_inside(scene: Scene, limit: int = 20) -> list[str]:
    """Return lines for people about what stands still inside NCCL and the counters that say so; none where nothing does."""
    return nccl.lines(Picture(scene), limit)


def communicator_names(scene: Scene) -> dict[int, str]:
    """Return what people call NCCL's communicators, by their hash."""
    inside = Picture(scene).inside
    return {} if inside is None else inside.names


def parallel_groups(scene: Scene) -> tuple[ParallelGroup, ...]:
    """Return the process groups that the program made, as they are seen."""
    return _groups_of(Picture(scene))


def _groups_of(picture: Picture) -> tuple[ParallelGroup, ...]:
    return tuple(
        ParallelGroup(name=group.name, label=picture.label(group), ranks=group.ranks) for group in picture.groups
    )
