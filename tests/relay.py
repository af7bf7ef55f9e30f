"""Somebody on the way between an agent and its controller: passes bytes on, and adds some of its own, as it is told."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Listens on loopback and passes all connections on to `port`. Everything happens in threads of its own."""

    def __init__(self, port: int, listen_on: str = "127.0.0.1") -> None:
        self._listener = socket.create_server((listen_on, 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        """How many it has passed on."""
        self.added = 0
        """How often it has added something."""
        self._to = port
        self._lock = threading.Lock()
        self._to_agent = b""
        self._to_controller = b""
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, *, to_agent: bytes = b"", to_controller: bytes = b"") -> None:
        """Put these bytes before the next ones that pass, once for each direction that is given any."""
        with self._lock:
            self._to_agent, self._to_controller = to_agent, to_controller

    def close(self) -> None:
        """Cut everything."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                agent, _ = self._listener.accept()
                controller = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += (agent, controller)
                self.connections += 1
                for one, other, is_to_agent in ((agent, controller, False), (controller, agent, True)):
                    threading.Thread(target=self._pass_on, args=(one, other, is_to_agent), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, is_to_agent: bool) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(self._taken(is_to_agent) + data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def _taken(self, is_to_agent: bool) -> bytes:
        with self._lock:
            if is_to_agent:
                data, self._to_agent = self._to_agent, b""
            else:
                data, self._to_controller = self._to_controller, b""
            self.added += bool(data)
            return data
