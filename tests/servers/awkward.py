"""Web servers as they should not be: silent, breaking off, ignoring ranges, sending others, changing files, redirecting away."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: What the files of these servers hold.
CONTENT = bytes(range(256)) * 4096

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Request:
    """One request, and what to answer it with."""

    def __init__(self, connection: socket.socket, head: str, number: int) -> None:
        self._connection = connection
        first, _, rest = head.partition("\r\n")
        self.method, self.path, _ = first.split(" ", 2)
        self.headers = {
            key.lower(): value.strip() for key, _, value in (line.partition(":") for line in rest.splitlines())
        }
        self.number = number
        """From 0, over all connections of the server."""

    @property
    def range(self) -> tuple[int, int] | None:
        """First byte, and the one after the last."""
        found = _RANGE.fullmatch(self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) + 1) if found else None

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._connection.sendall(data)

    def answer(self, status: str, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        """Send a reply. `length` is what it says its length is."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if self.method == "HEAD" else body))

    def answer_range(self, content: bytes = CONTENT, **headers: str) -> None:
        """Answer as a well-behaved server would."""
        if self.range is None:
            self.answer("200 OK", content, **headers)
            return
        first, end = self.range
        end = min(end, len(content))
        if first >= len(content):
            self.answer("416 Range Not Satisfiable", Content_Range=f"bytes */{len(content)}")
            return
        said = f"bytes {first}-{end - 1}/{len(content)}"
        self.answer("206 Partial Content", content[first:end], Content_Range=said, **headers)


class AwkwardServer:
    """Serves with a function: it returns True to keep the connection, anything else to close it."""

    def __init__(self, behave: Callable[[Request], object]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.requests: list[Request] = []
        self.connections = 0
        self.ended = threading.Event()
        """Set at the end of the block: what a silent server waits for."""
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/data"

    def start(self) -> None:
        """Begin to accept."""
        self._spawn(self._accept)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
                self.connections += 1
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            reader = connection.makefile("rb")
            while head := _head(reader.readline):
                with self._lock:
                    request = Request(connection, head, len(self.requests))
                    self.requests.append(request)
                if self._behave(request) is not True:
                    return

    def stop(self) -> None:
        """End all of it."""
        self.ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(60)  # it accepts: after it there are no more connections and threads
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)


def _head(line: Callable[[], bytes]) -> str:
    lines = []
    while (found := line()) not in (b"\r\n", b""):
        lines.append(found.decode("latin-1"))
    return "".join(lines)


@contextmanager
def awkward_server(behave: Callable[[Request], object]) -> Iterator[AwkwardServer]:
    """Run one for the length of a block."""
    server = AwkwardServer(behave)
    server.start()
    try:
        yield server
    finally:
        server.stop()
