"""A server of files in ranges over HTTP that counts what it sends, and can be told to send no more for now."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Counting(ThreadingHTTPServer):
    """Serves a folder."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.lock = threading.Lock()
        self.sent_bytes = 0
        """Of file content."""
        self.allowed_bytes: float = float("inf")
        """So many are sent in all; a request beyond that waits."""
        self.fails: set[str] = set()
        """Paths that it answers with an error that may pass."""
        self.connections = 0
        self.may_go_on = threading.Event()
        self.is_waiting = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request, client_address) -> None:
        """Count a connection, and have it served."""
        with self.lock:
            self.connections += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.lock:
                self.connections -= 1

    def forget_the_dead(self) -> None:
        """Wait until nothing is left of connections whose clients were killed."""
        self.may_go_on.set()
        ours = HTTPConnection("127.0.0.1", self.server_address[1], timeout=60)
        ours.request("HEAD", "/")  # answered when those that came before it are served
        ours.getresponse().close()
        ours.close()
        until_s = time.monotonic() + 60
        while self.connections:
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def handle_error(self, request, client_address) -> None:
        """Clients are killed here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.folder / self.path.lstrip("/")
        if self.path in self.server.fails:
            self.send_error(503)
            return
        if path.is_dir() and self.path.endswith("/"):
            self._show(path)
            return
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end = 0, size
        if match:
            begin, end = int(match[1]), min(int(match[2] or size) + 1, size)
        if with_body:
            with self.server.lock:
                waits = self.server.sent_bytes + end - begin > self.server.allowed_bytes
                if not waits:
                    self.server.sent_bytes += end - begin
            if waits:
                self.server.is_waiting.set()
                self.server.may_go_on.wait(60)
                return
        self.send_response(206 if match else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(end - begin))
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                file.seek(begin)
                self.wfile.write(file.read(end - begin))

    def _show(self, folder: Path) -> None:
        """Answer with an index page."""
        links = "".join(f'<a href="{each.name}/">{each.name}/</a>' for each in folder.iterdir() if each.is_dir())
        page = f"<html><body><a href='../'>..</a>{links}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *arguments) -> None:
        """Say nothing."""


@contextmanager
def counting_server(folder: Path) -> Iterator[Counting]:
    """Serve a folder while the block runs."""
    server = Counting(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.may_go_on.set()
        server.shutdown()
        thread.join(30)
        server.server_close()
