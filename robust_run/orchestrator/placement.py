"""Where a member runs. Pure.

Where it ran before, if there is room: its warm processes and its files are there. Else the node with the most room, so that
members of a role are spread and the loss of a node takes few of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.orchestrator.state import Member, Node
from robust_run.orchestrator.words import RoleSpec

Place = tuple[tuple[str, ...], tuple[int, ...]]
"""Nodes, and GPUs on each of them."""


def place(role: RoleSpec, member: Member, nodes: Mapping[str, Node]) -> Place | None:
    """Return where a member is started; None: there is no room now."""
    fits = [name for name in nodes if _fits(role, nodes[name])]
    fits.sort(key=lambda name: (name not in member.nodes, -nodes[name].free, name))
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
    gpus = f" with {role.devices * role.nproc} GPUs" if role.devices else ""
    return f"room for {role.nproc} workers{gpus} on {role.nodes} node{'s' * (role.nodes > 1)}"


def occupy(role: RoleSpec, member: Member, nodes: Mapping[str, Node], where: Place) -> None:
    """Note that it runs there."""
    member.nodes, devices = where
    for name in member.nodes:
        nodes[name].used[member.name] = role.nproc
        nodes[name].devices_used[member.name] = devices


def vacate(member: Member, nodes: Mapping[str, Node]) -> None:
    """Note that nothing of it runs any more."""
    for node in nodes.values():
        node.used.pop(member.name, None)
        node.devices_used.pop(member.name, None)


def can_ever_fit(role: RoleSpec, nodes: Mapping[str, Node]) -> bool:
    """Whether empty nodes would have room for one member."""
    wanted = role.devices * role.nproc
    return sum(node.slots >= role.nproc and node.devices >= wanted for node in nodes.values()) >= role.nodes


def _fits(role: RoleSpec, node: Node) -> bool:
    return node.free >= role.nproc and len(_free_devices(node)) >= role.devices * role.nproc


def _free_devices(node: Node) -> tuple[int, ...]:
    used = {device for devices in node.devices_used.values() for device in devices}
    return tuple(device for device in range(node.devices) if device not in used)
