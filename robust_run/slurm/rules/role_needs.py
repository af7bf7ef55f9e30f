"""How many nodes the roles of a job need, by component (`robust slurm submit ... : ... -- robust-run --roles FILE`). Pure.

What is asked of Slurm must be enough for the members that a job begins with; else they would wait for each other's room for ever.
Only what the options say is counted: a component whose GPUs or CPUs per node are not said may have any number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.slurm.rules.sbatch_options import Option, last_value

_HET = re.compile(r"het-([0-9]{1,3})")
_COUNT = re.compile(r"(?:[^,:]+:)?([0-9]{1,4})")
_GRES = re.compile(r"(?:^|,)gpu(?::[^,:]*[^0-9,:][^,:]*)?(?::([0-9]{1,4}))?(?:,|$)")


class RoleNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a role needs. Of each member and node: GPUs, CPUs."""

    name: str
    where: str = ""
    members: int = 1
    nodes: int = 1
    gpus: int = 0
    cpus: int = 0


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a component's nodes; None: nothing."""

    nodes: int | None = None
    gpus: int | None = None
    cpus: int | None = None


def fragile(nodes: Sequence[int | None]) -> str:
    """Return what is to be said of a heterogeneous job with so many nodes in each component; empty if nothing is.

    Slurm 22.05 looks at all components when a node is lost: if one of them has a single node (left), --no-kill is void for all.
    It then requeues component 0 alone, which waits for the others for ever.
    """
    single = [str(number) for number, count in enumerate(nodes) if count == 1]
    if len(nodes) < 2 or not single:
        return ""
    return (
        f"component {', '.join(single)} has one node: when any node of the job is lost, Slurm ends all of it, whatever --no-kill"
        " says, and may not start it again; give each component two nodes or more"
    )


def component_of(options: Sequence[Option]) -> Component:
    """Return what sbatch options say of the nodes."""
    nodes = last_value(options, "nodes") or ""
    count = int(nodes) if nodes.isdecimal() and len(nodes) < 6 else None
    cpus = last_value(options, "cpus-per-task") or ""
    return Component(nodes=count, gpus=_gpus(options), cpus=int(cpus) if cpus.isdecimal() and len(cpus) < 6 else None)


def nodes_for(roles: Sequence[RoleNeed], components: Sequence[Component], labels: Sequence[str]) -> tuple[int, ...]:
    """Return how many nodes each component should have. `labels`: those that all nodes have (--node-label).

    Raises UserError for a role that no component can run.
    """
    shares: list[list[RoleNeed]] = [[] for _ in components]
    for role in roles:
        shares[_component(role, components, labels)].append(role)
    return tuple(_nodes(share, each, place) for place, (share, each) in enumerate(zip(shares, components, strict=True)))


def _component(role: RoleNeed, components: Sequence[Component], labels: Sequence[str]) -> int:
    """Return which component a role is counted for."""
    if not role.where or role.where in labels:
        return next((n for n, each in enumerate(components) if role.gpus and each.gpus), 0)
    found = _HET.fullmatch(role.where)
    if found is None or len(components) == 1:
        raise UserError(
            f"[roles.{role.name}] where = {role.where!r}: no node of the job has that label; the nodes of component 1 have het-1:"
            " robust slurm submit [options of component 0] : [options of component 1] -- robust-run --roles FILE"
        )
    number = int(found[1])
    if number >= len(components):
        raise UserError(
            f"[roles.{role.name}] where = {role.where!r}: the job has {len(components)} components, het-0 to"
            f" het-{len(components) - 1}; write : and the options of another before --"
        )
    return number


def _nodes(roles: Sequence[RoleNeed], has: Component, place: int) -> int:
    """Return how many nodes are enough: members one after the other, the largest first, each on the first nodes with room."""
    units = [role for role in roles for _ in range(role.members)]
    free: list[tuple[float, float]] = []
    gpus, cpus = (math.inf if each is None else each for each in (has.gpus, has.cpus))
    for role in sorted(units, key=lambda role: (-role.nodes, -role.gpus, -role.cpus)):
        if role.gpus > gpus or role.cpus > cpus:
            what = f"{role.gpus} GPUs" if role.gpus > gpus else f"{role.cpus} CPUs"
            said = f"{has.gpus} (--gpus-per-node)" if role.gpus > gpus else f"{has.cpus} (--cpus-per-task)"
            raise UserError(
                f"[roles.{role.name}] needs {what} on a node for each member, and component {place} has {said}"
            )
        fits = [number for number, (g, c) in enumerate(free) if g >= role.gpus and c >= role.cpus][: role.nodes]
        for _ in range(role.nodes - len(fits)):
            fits.append(len(free))
            free.append((gpus, cpus))
        for number in fits:
            free[number] = (free[number][0] - role.gpus, free[number][1] - role.cpus)
    return max(1, len(free))


def _gpus(options: Sequence[Option]) -> int | None:
    """Return the GPUs of a node; None: it is not said, or only for the whole job."""
    found = _COUNT.fullmatch(last_value(options, "gpus-per-node") or "")
    if found is not None:
        return int(found[1])
    found = _GRES.search(last_value(options, "gres") or "")
    return int(found[1] or 1) if found is not None else None
