"""Where a member runs. Pure.

Where it ran before, if there is room: its warm processes and its files are there. Else the node with the most room, so that
members of a role are spread and the loss of a node takes few of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import Member, Node

Place = tuple[tuple[str, ...], tuple[int, ...]]
"""Nodes, and GPUs on each of them."""


def place(role: RoleSpec, member: Member, nodes: Mapping[str, Node]) -> Place | None:
    """Return where a member is started; None: there is no room now."""
    fits = [name for name in nodes if _fits(role, nodes[name])]
    fits.sort(key=lambda name: (name not in member.nodes, *_room(role, nodes[name]), name))
    if role.nodes == 1 and fits:
        return (fits[0],), _free_devices(nodes[fits[0]])[: role.devices * role.nproc]
    chosen: list[str] = []
    common: tuple[int, ...] = ()
    for name in fits:  # the same GPUs of each
        free = _free_devices(nodes[name])
        both = free if not chosen else tuple(device for device in common if device in free)
        if len(both) >= role.devices * role.nproc:
            chosen.append(name)
            common = both
        if len(chosen) == role.nodes:
            return tuple(chosen), common[: role.devices * role.nproc]
    return None


def needs(role: RoleSpec) -> str:
    """Return in words what a member needs."""
    gpus = f"{role.devices * role.nproc} GPUs" if role.devices else ""
    cpus = f"{role.cpus * role.nproc} CPUs" if role.cpus else ""
    what = f" with {' and '.join(filter(None, (gpus, cpus)))}" if gpus or cpus else ""
    label = f" labelled {role.where!r}" if role.where else ""
    return f"room for {role.nproc} workers{what} on {role.nodes} node{'s' * (role.nodes > 1)}{label}"


def occupy(role: RoleSpec, member: Member, nodes: Mapping[str, Node], where: Place) -> None:
    """Note that it runs there."""
    member.nodes, devices = where
    for name in member.nodes:
        nodes[name].used[member.name] = role.nproc
        nodes[name].devices_used[member.name] = devices
        nodes[name].cpus_used[member.name] = role.cpus * role.nproc


def vacate(member: Member, nodes: Mapping[str, Node]) -> None:
    """Note that nothing of it runs any more."""
    for node in nodes.values():
        node.used.pop(member.name, None)
        node.devices_used.pop(member.name, None)
        node.cpus_used.pop(member.name, None)


def why_never(role: RoleSpec, nodes: Mapping[str, Node]) -> str:
    """Return why these nodes, if they were empty, would have no room for one member; empty if they would."""
    labelled = [node for node in nodes.values() if _is_where(role, node)]
    if role.where and not labelled:
        there = sorted({label for node in nodes.values() for label in node.labels})
        return f"no node has the label {role.where!r}" + (f", only {', '.join(there)}" if there else "")
    if sum(_is_enough(role, node) for node in labelled) >= role.nodes:
        return ""
    gpus = max((node.devices for node in labelled), default=0)
    cpus = max((node.cpus for node in labelled), default=0)
    them = f"{len(labelled)} node{'s' * (len(labelled) != 1)}" + (f" labelled {role.where!r}" if role.where else "")
    most = f"up to {gpus} GPUs" + (f" and {cpus} CPUs" if role.cpus else "")
    return f"there {'is' if len(labelled) == 1 else 'are'} {them} with {most}"


def _is_where(role: RoleSpec, node: Node) -> bool:
    return not role.where or role.where in node.labels


def _is_enough(role: RoleSpec, node: Node) -> bool:
    """Whether an empty node would do."""
    devices, cpus = role.devices * role.nproc, role.cpus * role.nproc
    return _is_where(role, node) and node.slots >= role.nproc and node.devices >= devices and node.cpus >= cpus


def _fits(role: RoleSpec, node: Node) -> bool:
    devices = len(_free_devices(node)) >= role.devices * role.nproc
    return _is_where(role, node) and node.free >= role.nproc and node.free_cpus >= role.cpus * role.nproc and devices


def _room(role: RoleSpec, node: Node) -> tuple[int, int]:
    """Return what nodes are sorted by, that with the most room first. CPUs count for those who ask for them."""
    return -node.free_cpus if role.cpus else 0, -node.free


def _free_devices(node: Node) -> tuple[int, ...]:
    used = {device for devices in node.devices_used.values() for device in devices}
    return tuple(device for device in range(node.devices) if device not in used)
