"""Handoff from a warm process to the agent forked from it: helpers that need no start. No behaviour."""

from __future__ import annotations

import socket
from typing import NamedTuple


class WarmHandoff(NamedTuple):
    """Two children of the agent, forked before it had a thread, each with our end of the socket it is told by."""

    daemon_pid: int
    """The per-user warm process they and the agent come from."""
    modules: tuple[str, ...]
    """Imported in it."""
    warm_pid: int
    warm_control: socket.socket
    """See `process`: it waits for orders as if it had just imported the modules."""
    store_pid: int
    store_control: socket.socket
    """See `store_process`."""
