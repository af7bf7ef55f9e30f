"""Parallel groups as people think of them: those of one kind together, as `tp`, `dp`, `pp`. Pure.

The user configures nothing: groups are those that the program made. Groups of one size that share no rank are of one kind;
names that end in a number (`dp_0`, `dp_1`) tell kinds of the same size apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from robust_run.tracer.verdict import ParallelGroup

#: Kinds that a page offers.
MOST_FAMILIES = 5
#: Groups of one kind that a page draws.
MOST_GROUPS = 2048


class GroupFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel groups of one kind."""

    name: str
    groups: tuple[ParallelGroup, ...]
    """By their first rank; no rank is in two of them."""


def families(groups: Sequence[ParallelGroup], world_size: int, wanted: str = "") -> tuple[GroupFamily, ...]:
    """Return the kinds of groups that say something about a world. `wanted`: label of the group whose kind comes first."""
    found: list[list[ParallelGroup]] = []
    names: list[tuple[str, int]] = []
    taken: list[set[int]] = []
    ordered = sorted(groups, key=lambda group: (_stem(group), len(group.ranks), group.ranks))
    for group in ordered:
        if not 1 < len(group.ranks) < world_size:
            continue
        kind = (_stem(group), len(group.ranks))
        for index, name in enumerate(names):
            if name == kind and taken[index].isdisjoint(group.ranks):
                found[index].append(group)
                taken[index].update(group.ranks)
                break
        else:
            names.append(kind)
            found.append([group])
            taken.append(set(group.ranks))
    kinds = [
        GroupFamily(
            name=_called(name, members), groups=tuple(sorted(members, key=lambda group: group.ranks))[:MOST_GROUPS]
        )
        for (name, _), members in zip(names, found, strict=True)
    ]
    kinds.sort(key=lambda kind: (not any(group.label == wanted for group in kind.groups), -_covered(kind)))
    return tuple(kinds[:MOST_FAMILIES])


def _covered(family: GroupFamily) -> int:
    return sum(len(group.ranks) for group in family.groups)


def _stem(group: ParallelGroup) -> str:
    """Return what groups of a kind are called, without the number of the single one; nothing where they have no names."""
    label = re.sub(r"\s*\(.*\)$", "", group.label.removeprefix("group "))
    return re.sub(r"[\s_:\-.\[]*\d+\]?$", "", label)


def _called(stem: str, members: Sequence[ParallelGroup]) -> str:
    return f"{stem} groups" if stem else f"groups of {len(members[0].ranks)}"
