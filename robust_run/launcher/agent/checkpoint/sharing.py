"""Where nodes of a job give each other what they fetch of a checkpoint: a port that is open from before the node joins.

The process that fetches inherits it, so that what is asked before it is up waits in the backlog.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

_BACKLOG = 512


class CheckpointSharing(NamedTuple):
    """This node among those that share."""

    listening: socket.socket
    own: str
    """HOST:PORT, as other nodes reach it."""
    key: str
    """Who does not show it gets nothing."""


def listen(say: Callable[[str], None]) -> socket.socket | None:
    """Return a socket that other nodes reach; None: there can be none, which was said."""
    try:
        return _bound()
    except OSError as error:
        say(f"nodes do not share what they fetch of the checkpoint: this one cannot listen: {error.strerror or error}")
        return None


def _bound() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)
