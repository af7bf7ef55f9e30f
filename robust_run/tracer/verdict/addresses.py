"""Whose an address is: ends of connections, and the hosts of ranks."""

from __future__ import annotations

from functools import cached_property

from robust_run.tracer.types import RankSight
from robust_run.tracer.verdict.picture import Picture


def nodes_by_address(picture: Picture) -> dict[str, str]:
    """Return which node has an address, without those that several have."""
    nodes: dict[str, set[str]] = {}
    for sight in picture.scene.ranks:
        nodes.setdefault(_plain(sight.address), set()).add(sight.node)
    return {address: names.pop() for address, names in nodes.items() if address and len(names) == 1}


def address_of(end: str) -> str:
    """Return the address in `10.0.0.1:4000` or `[fd00::1]:4000`."""
    return _plain(end.rpartition(":")[0].strip("[]"))


def _plain(text: str) -> str:
    """Write an address in the one way in which all are compared; "" if it is none, or of a machine's inside."""
    import ipaddress

    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""  # a name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return "" if address.is_loopback or address.is_unspecified else str(address)


class Peers:
    """Says which rank or host of the job the other end of a connection is; nothing is guessed. Indexed when first asked."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    @cached_property
    def _nodes(self) -> dict[str, str]:
        return nodes_by_address(self._picture)

    @cached_property
    def _ends(self) -> dict[tuple[str, str], set[int]]:
        """Which ranks wait on a connection, by its ends as they see them."""
        ends: dict[tuple[str, str], set[int]] = {}
        for sight in self._picture.scene.ranks:
            for one in sight.wake.sockets if sight.wake is not None else ():
                if one.there:
                    ends.setdefault((one.here, one.there), set()).add(sight.rank)
        return ends

    @cached_property
    def _listeners(self) -> dict[tuple[str, str], set[int]]:
        """Which ranks wait for connections, by node and port."""
        found: dict[tuple[str, str], set[int]] = {}
        for sight in self._picture.scene.ranks:
            for one in sight.wake.sockets if sight.wake is not None else ():
                if one.is_listening:
                    found.setdefault((sight.node, _port(one.here)), set()).add(sight.rank)
        return found

    def rank_of(self, sight: RankSight, there: str) -> int | None:
        """Return the rank at the other end of the connection on which a rank waits; None if that is not certain."""
        mine = {one.here for one in sight.wake.sockets if one.there == there} if sight.wake is not None else set()
        if len(mine) != 1:
            return None
        found = self._ends.get((there, mine.pop()), set())
        if address_of(there):
            found = found or self._listeners.get((self._nodes.get(address_of(there), ""), _port(there)), set())
        else:  # of each machine its own
            found = {rank for rank in found if self._picture.sights[rank].node == sight.node}
        others = found - {sight.rank}
        return others.pop() if len(found) == len(others) == 1 else None

    def node_of(self, sight: RankSight, there: str) -> str:
        """Return the other host of the job that has this address; "" if that is not certain."""
        node = self._nodes.get(address_of(there), "")
        return "" if node == sight.node else node


def _port(end: str) -> str:
    return end.rpartition(":")[2]
