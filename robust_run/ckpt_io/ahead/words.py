"""What an agent and the process that fetches a checkpoint ahead say to each other: a line of JSON each."""

from __future__ import annotations

import msgspec

#: Of a socket at which readers get the memory, and so many may wait there.
SOCKET_ENDING, BACKLOG = ".sock", 512


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch: told once, or a second time when an attempt begins that it was fetched for."""

    url: str
    """Of the checkpoint."""
    uuid: str
    """Of its manifest; empty: whichever it is."""
    is_folder: bool = False
    """`url` is a folder of checkpoints: fetch the newest that is whole, which a job will most likely start from."""
    limit_bytes: int | None = None
    """So much memory may be taken; None: half of what is free."""
    rate_bytes_s: float | None = None
    """So much may be fetched a second, on average; None: no limit."""
    hands_out: int = -1
    """Descriptor of a socket at which readers get the memory who cannot open it as this process's; -1: there are none."""
    own: int = 0
    """This node among `peers`."""
    peers: tuple[str, ...] = ()
    """HOST:PORT of all nodes that share, in an order that all know; empty: nobody does."""
    ranks: tuple[tuple[int, int], ...] = ()
    """Of each of these nodes, or of this one alone: its first rank, and how many it has."""
    world_size: int = 0
    key: str = ""
    """Who does not know it gets nothing from this node."""
    is_assumed: bool = False
    """`own`, `ranks` and `world_size` are what the job's options promise. Until they are told, with who shares, only what falls
    to this node is fetched: so nodes fetch one checkpoint together, and not one each.
    """


class FetchPace(msgspec.Struct, frozen=True, kw_only=True):
    """So fast it may go on from now on: others are waited for more, or not any more."""

    rate_bytes_s: float | None


class FetchNews(msgspec.Struct, frozen=True, kw_only=True):
    """How far it has come: told once a second while that changes."""

    uuid: str = ""
    """Of what is fetched; empty: it is not known yet."""
    total_bytes: int = 0
    planned_bytes: int = 0
    """Of these so much is fetched, as there is room for it."""
    have_bytes: int = 0
    from_peers_bytes: int = 0
    began_s: float = 0.0
    """Of the monotonic clock."""
    at_s: float = 0.0
    """When it was seen that more had come."""
    is_waited_for: bool = False
    """A reader waits for a unit."""
    is_over: bool = False
    trouble: str = ""
    """What could not be fetched, and why; a clause."""
