"""An object store on a modelled network: HTTP range requests with latency, a rate per connection, a rate of the link, and faults.

No packet is shaped: each reply is paced, so two of these on one machine do not disturb each other. In a test it is a thread:

    with ModelOrigin(folder, latency_s=0.02, connection_bytes_per_s=50e6, link_bytes_per_s=500e6) as origin:
        origin.fault = "wrong"
        get(origin.url + "train.sqsh")

By itself: `python model_origin.py FOLDER PORT LATENCY_MS CONNECTION_MBPS LINK_MBPS [ADDRESS [LOG]]` (0: unlimited). LOG gets a
line for each request that was answered with bytes: seconds, who asked, path, offset and size, between tabs.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, TextIO
from urllib.parse import quote, unquote

Fault = Literal["silent", "stuck", "wrong", "error", "gone", "drop", "dribble"]
"""silent: takes the request and says nothing · stuck: sends half of it and stops · wrong: one byte of each block is another ·
error: 500 · gone: 404 · drop: hangs up within the body · dribble: a byte every 0.2 s"""

_PIECE_BYTES = 256 << 10
_RANGE = re.compile(rb"(?i)\r\nrange: *bytes=(\d+)-(\d*)")
_SLACK_S = 0.02


class Asked(NamedTuple):
    """One request that was answered with bytes."""

    path: str
    offset_bytes: int
    size_bytes: int


@dataclass
class Link:
    """A rate that is shared: who sends next may send when."""

    bytes_per_s: float
    free_at_s: float = 0.0

    def reserve(self, size_bytes: int, now_s: float) -> float:
        """Return when so many bytes may have gone out."""
        if not self.bytes_per_s:
            return now_s
        self.free_at_s = max(self.free_at_s, now_s - _SLACK_S) + size_bytes / self.bytes_per_s
        return self.free_at_s


class ModelOrigin:
    """The server. Used as a context manager it runs in a thread of its own."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        latency_s: float = 0.0,
        connection_bytes_per_s: float = 0.0,
        link_bytes_per_s: float = 0.0,
        port: int = 0,
        host: str = "127.0.0.1",
        log: TextIO | None = None,
    ) -> None:
        self._log = log
        self._folder = os.path.realpath(folder)
        self._latency_s, self._connection_rate = latency_s, connection_bytes_per_s
        self._link = Link(link_bytes_per_s)
        self.fault: Fault | None = None
        self.asked: list[Asked] = []
        self.met: list[Fault] = []
        """Faults that a request ran into."""
        self._socket = socket.create_server((host, port), backlog=512)
        self._socket.setblocking(False)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bytes_sent(self) -> int:
        """How much of files was asked for and not refused."""
        return sum(asked.size_bytes for asked in self.asked)

    def __enter__(self) -> ModelOrigin:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._loop.close()
        self._socket.close()

    def run(self) -> None:
        """Serve until stopped."""
        self._loop.add_reader(self._socket, self._accept)
        self._loop.run_forever()
        self._loop.remove_reader(self._socket)
        self._loop.run_until_complete(self._finish())

    async def _finish(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        """Without waiting: a connection that came as we were stopped would be lost with who waited, and never be closed."""
        try:
            connection, _address = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return  # who asked went away
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._talk(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _task: connection.close())  # it may be cancelled before it begins

    async def _talk(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        received = b""
        with connection:
            try:
                while True:
                    while b"\r\n\r\n" not in received:
                        data = await self._loop.sock_recv(connection, 65536)
                        if not data:
                            return
                        received += data
                    head, _end, received = received.partition(b"\r\n\r\n")
                    await self._answer(connection, head)
            except (OSError, ConnectionError):
                return

    async def _answer(self, connection: socket.socket, head: bytes) -> None:
        await asyncio.sleep(self._latency_s)
        fault = self.fault
        if fault is not None:
            self.met.append(fault)
        if fault == "silent":
            await asyncio.sleep(3600)
        if fault in ("error", "gone"):
            await self._refuse(connection, "500 Internal Server Error" if fault == "error" else "404 Not Found")
            return
        name = unquote(head.split(b" ", 2)[1].decode()).partition("?")[0].lstrip("/")
        path = os.path.realpath(os.path.join(self._folder, name))
        if name.endswith("/") and path.startswith(self._folder + os.sep) and os.path.isdir(path):
            await self._index(connection, path)
            return
        if not path.startswith(self._folder + os.sep) or not os.path.isfile(path):
            await self._refuse(connection, "404 Not Found")
            return
        with open(path, "rb") as file:
            await self._send(connection, head, file.fileno(), name, fault)

    async def _index(self, connection: socket.socket, path: str) -> None:
        """Show the folders in a folder, as web servers do."""
        folders = [entry.name for entry in os.scandir(path) if entry.is_dir()]
        page = "".join(f'<a href="{quote(name)}/">{name}/</a>\n' for name in sorted(folders)).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
        await self._loop.sock_sendall(connection, head.encode() + page)

    async def _refuse(self, connection: socket.socket, status: str) -> None:
        await self._loop.sock_sendall(connection, f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    async def _send(self, connection: socket.socket, head: bytes, file: int, name: str, fault: Fault | None) -> None:
        found = os.fstat(file)
        wanted = _RANGE.search(head)
        begin, end = 0, found.st_size
        if wanted:
            begin = int(wanted[1])
            end = min(end, int(wanted[2]) + 1) if wanted[2] else end
        if begin >= end:
            await self._refuse(connection, "416 Range Not Satisfiable")
            return
        lines = [
            "HTTP/1.1 206 Partial Content" if wanted else "HTTP/1.1 200 OK",
            "Accept-Ranges: bytes",
            f'ETag: "{found.st_mtime_ns:x}-{found.st_size:x}"',
            f"Content-Length: {end - begin}",
            *([f"Content-Range: bytes {begin}-{end - 1}/{found.st_size}"] if wanted else []),
        ]
        await self._loop.sock_sendall(connection, "\r\n".join([*lines, "", ""]).encode())
        if head.startswith(b"HEAD"):
            return
        self.asked.append(Asked(name, begin, end - begin))
        if self._log is not None:
            who = connection.getpeername()[0]
            self._log.write(f"{time.monotonic():.3f}\t{who}\t{name}\t{begin}\t{end - begin}\n")
        if fault is not None:
            await self._send_badly(connection, os.pread(file, end - begin, begin), fault)
        else:
            await self._send_paced(connection, file, begin, end)

    async def _send_badly(self, connection: socket.socket, data: bytes, fault: Fault) -> None:
        if fault == "wrong":
            bad = bytearray(data)
            for position in range(0, len(bad), 1 << 16):
                bad[position] ^= 0xFF
            await self._loop.sock_sendall(connection, bad)
        elif fault == "dribble":
            for position in range(len(data)):
                await self._loop.sock_sendall(connection, data[position : position + 1])
                await asyncio.sleep(0.2)
        else:
            await self._loop.sock_sendall(connection, data[: len(data) // 2])
            if fault == "stuck":
                await asyncio.sleep(3600)
            raise ConnectionError

    async def _send_paced(self, connection: socket.socket, file: int, begin: int, end: int) -> None:
        own = Link(self._connection_rate)
        own.free_at_s = self._loop.time()
        while begin < end:
            size = min(_PIECE_BYTES, end - begin)
            now_s = self._loop.time()
            delay_s = max(own.reserve(size, now_s), self._link.reserve(size, now_s)) - now_s
            if delay_s > 0.001:
                await asyncio.sleep(delay_s)
            await self._send_piece(connection, file, begin, size)
            begin += size

    async def _send_piece(self, connection: socket.socket, file: int, begin: int, size: int) -> None:
        sent = 0
        while sent < size:
            try:
                sent += os.sendfile(connection.fileno(), file, begin + sent, size - sent)
            except BlockingIOError:
                ready = self._loop.create_future()
                self._loop.add_writer(connection.fileno(), lambda ready=ready: ready.done() or ready.set_result(None))
                try:
                    await ready
                finally:
                    self._loop.remove_writer(connection.fileno())


if __name__ == "__main__":
    folder, port, latency_ms, connection_mbps, link_mbps = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:6])
    ModelOrigin(
        folder,
        latency_s=latency_ms / 1e3,
        connection_bytes_per_s=connection_mbps * 1e6,
        link_bytes_per_s=link_mbps * 1e6,
        port=port,
        host=(sys.argv[6:] or ["127.0.0.1"])[0],
        log=open(sys.argv[7], "a", buffering=1, encoding="utf-8") if sys.argv[7:] else None,  # noqa: SIM115 - as long as we run
    ).run()
