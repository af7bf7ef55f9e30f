"""Listens in an agent's loop to the processes beside the workers: the store's, and the one that starts warm ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import socket

    from robust_run.launcher.node import Node


class StoreWatch:
    """Readers of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node) -> None:
        self._loop = loop
        self._node = node

    def watch_socket(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """Call when a socket can be read; None: not any more."""
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            if call is not None:
                self._loop.add_reader(sock.fileno(), call)

    def look(self) -> None:
        """Listen to the store's process, which may be a new one."""
        descriptor = self._node.store.fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        if self._node.store.fileno() == descriptor:
            self._node.store.read()
            self.look()
