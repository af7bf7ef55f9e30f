"""NCCL's communicators and torch's process groups are the same thing under two names: which is which. Pure.

A communicator belongs to the group whose members are its members, in the same order; of several such groups, to the one that it
is named after. What belongs to none keeps the name that NCCL was told (torch: the group's description).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from robust_run.tracer.nccl.teams import Team
from robust_run.tracer.types import Group
from robust_run.tracer.verdict.words import span


class Naming:
    """The groups and names of the communicators of a scene."""

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
