"""Events and orders about what keepers hold in memory, and copies of it on other nodes. No behaviour."""

from __future__ import annotations

import msgspec


class PartsElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Parts in memory that ranks of one node start from, and that another node has."""

    ranks: tuple[int, ...]
    """Sorted; all of them run on one node of the attempt."""
    of: str = ""
    """Name of the host on which they ran before, where these are copies; empty: the other node's own."""
    name: str
    """Of the host that has them."""
    host: str
    port: int
    """Where its keeper gives them."""


class MemoryReady(msgspec.Struct, frozen=True, tag="memory_ready", kw_only=True):
    """The keeper of a node takes copies of what other nodes keep in memory, and gives them back; or does so no longer."""

    attempt: int = -1
    """In which that is said; -1: this node was not in one yet."""
    node: str = ""
    host: str = ""
    port: int = 0
    """0: it is gone, with all it held."""


class MemoryGroups(msgspec.Struct, frozen=True, tag="memory_groups", kw_only=True):
    """Which nodes of an attempt share a parallel group: a fault may take them all."""

    attempt: int
    groups: tuple[tuple[int, ...], ...]
    """By place among the nodes of the attempt; each of them once."""


class MemoryPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Which node gets copies of what a node keeps."""

    node: str
    """Whose."""
    host: str
    port: int
    name: str
    """Of the host that gets them."""


class MemoryPeers(msgspec.Struct, frozen=True, tag="memory_peers", kw_only=True):
    """Have nodes of an attempt send copies of what their ranks save. A later one takes the place of an earlier one."""

    attempt: int
    peers: tuple[MemoryPeer, ...]
    """An agent is told its own."""


MemoryEvent = MemoryReady | MemoryGroups
