"""Groups of a scene: two without a common member may share a name, so they are known by more than that. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.tracer.types import WORLD, Group, RankSight, Scene

#: Name, number of members, first and last member.
GroupKey = tuple[str, int, int, int]


#: Why calls of a rank prove nothing that has made more groups than its record has room for.
UNLISTED = "makes calls of groups that its record has no room for"


def without_unlisted(scene: Scene) -> Scene:
    """Return the scene without calls of which the group is not known.

    Those of several groups would look like calls of one, which has all ranks and where hardly any has come. What is left is
    less than what was done, so it proves nothing.
    """
    ranks = tuple(map(_without_unlisted, scene.ranks))
    if all(after is before for after, before in zip(ranks, scene.ranks, strict=True)):
        return scene
    return msgspec.structs.replace(scene, ranks=ranks)


def _without_unlisted(sight: RankSight) -> RankSight:
    trace = sight.trace
    if trace is None or all(op.group for op in trace.ops):
        return sight
    left = tuple(op for op in trace.ops if op.group)
    doubts = (*trace.doubts, UNLISTED)
    return msgspec.structs.replace(sight, trace=msgspec.structs.replace(trace, ops=left, doubts=doubts))


def collect_groups(scene: Scene) -> tuple[dict[GroupKey, Group], dict[str, tuple[GroupKey, ...]]]:
    """Return the groups of all ranks by key, and their keys by name; the world of all ranks among them."""
    world = Group(name=WORLD, ranks=tuple(range(scene.world_size)))
    groups: dict[GroupKey, Group] = {(WORLD, 0, 0, 0): world}
    for sight in scene.ranks:
        for group in sight.trace.groups if sight.trace is not None else ():
            if group.ranks and group.name != WORLD:
                groups.setdefault((group.name, len(group.ranks), group.ranks[0], group.ranks[-1]), group)
    by_name: dict[str, tuple[GroupKey, ...]] = {}
    for key in groups:
        by_name[key[0]] = (*by_name.get(key[0], ()), key)
    return groups, by_name


def count_descs(groups: Iterable[Group]) -> dict[str, int]:
    """Return how many groups have each description."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.desc] = counts.get(group.desc, 0) + 1
    return counts
