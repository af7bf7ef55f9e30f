"""Who is compared with whom, and the middle of a group that tolerates liars: median and median absolute deviation.

A few machines of a group may read anything at all without moving its median; that is what "far from its peers" rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Array, Indices

LEAST_GROUP = 3
"""Of three peers one odd machine is told apart; of two it is not. Machines of a role with fewer are compared with nobody: others
do other work, and what is odd among them may be their role's."""
MAD_TO_SIGMA = 1.4826
"""Of normal noise: the standard deviation by the median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The machines of a fleet by whom they are compared with."""

    member: Indices
    """Groups x most members: rows of the fleet's arrays; -1 where a group has fewer."""
    group_of: Indices
    """For each machine: its group; -1 if it has no peers."""
    sizes: Indices
    """Members of each group."""


def group_by_role(roles: tuple[str, ...]) -> Groups:
    """Return who is compared with whom. The order of machines does not matter."""
    import numpy as np

    by_role: dict[str, list[int]] = {}
    for row, role in enumerate(roles):
        by_role.setdefault(role, []).append(row)
    groups = [rows for _, rows in sorted(by_role.items()) if len(rows) >= LEAST_GROUP]
    member = np.full((len(groups), max(map(len, groups), default=0)), -1, dtype=np.intp)
    group_of = np.full(len(roles), -1, dtype=np.intp)
    for number, rows in enumerate(groups):
        member[number, : len(rows)] = rows
        group_of[rows] = number
    return Groups(member=member, group_of=group_of, sizes=np.array([len(rows) for rows in groups], dtype=np.intp))


def medians(values: Array, groups: Groups) -> Array:
    """Return groups x metrics: the median of what each group's machines read; NaN where fewer than three read anything."""
    import numpy as np

    if not len(groups.sizes):
        return np.empty((0, values.shape[1]))
    table = np.where(groups.member[:, :, None] >= 0, values[groups.member], np.nan)
    table.sort(axis=1)  # NaN last
    known = np.count_nonzero(~np.isnan(table), axis=1)
    low, high = np.maximum(known - 1, 0) // 2, np.maximum(known, 1) // 2
    middle = np.take_along_axis(table, low[:, None], axis=1) + np.take_along_axis(table, high[:, None], axis=1)
    return np.where(known >= LEAST_GROUP, middle[:, 0] / 2, np.nan)


def of_machines(per_group: Array, groups: Groups) -> Array:
    """Return machines x metrics from groups x metrics; NaN for machines without peers."""
    import numpy as np

    if not len(groups.sizes):
        return np.full((len(groups.group_of), per_group.shape[1]), np.nan)
    taken: Array = np.where(groups.group_of[:, None] >= 0, per_group[groups.group_of], np.nan)
    return taken
