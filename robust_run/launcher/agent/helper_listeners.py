"""Listeners on the sockets of helper processes. Imported after the first workers have been started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import socket

    from robust_run.launcher.agent.workers.store import StoreHost


class HelperListeners:
    """One agent's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: StoreHost) -> None:
        self._loop = loop
        self._store = store

    def listen(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """Call whenever there is something to read; None: not any more."""
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            if call is not None:
                self._loop.add_reader(sock.fileno(), call)

    def listen_to_store(self) -> None:
        """Listen to the store's process, which may be a new one."""
        descriptor = self._store.fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self._read_store, descriptor)

    def _read_store(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        if self._store.fileno() != descriptor:
            return
        self._store.read()
        self.listen_to_store()
