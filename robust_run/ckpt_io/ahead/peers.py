"""Units between nodes of a job, over HTTP, to who knows the key: a node gives what it has, and fetches its stripes for all.

    GET /MANIFEST/NUMBER[-FAILED...]    206: the unit. 503: it is coming, ask again. 404: it is not fetched here

FAILED are nodes that did not give it, which are left alone for a while: the next node fetches their stripes, for all.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import HERE, Area
from robust_run.store.errors import NotFound, StoreError, is_transient
from robust_run.store.http import HttpStore
from robust_run.store.types import Store, StoreOptions

#: A request waits so long for a unit that is coming, and who asks for it asks for so long in all.
WAIT_S, PATIENCE_S = 1.0, 20.0
#: A node that cannot be reached is not asked for so long.
SHUNNED_S = 30.0
_CONNECT_S, _STALL_S, _PAUSE_S = 2.0, 5.0, 0.2
_MOST_REQUESTS = 256
_POLL_S = 0.1
#: So many nodes are tried in the place of one; then the store is.
MOST_FAILED = 3
_RANGE = re.compile(r"bytes=0-(\d{1,15})")


def place_of(mark: bytes) -> str:
    """Return what names a manifest in a URL."""
    return hashlib.sha256(mark).hexdigest()[:32]


class PeerUnits:
    """The other nodes, as a source of units."""

    def __init__(
        self,
        place: str,
        peers: Sequence[str],
        own: int,
        key: str,
        sizes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        belongs: Sequence[int] | None = None,
    ) -> None:
        """`belongs`: the node of each unit, as `rules.plan` was told."""
        options = StoreOptions(connect_s=_CONNECT_S, stall_s=_STALL_S, token=key)
        self._stores: list[Store] = [HttpStore(f"http://{peer}/{place}", options) for peer in peers]
        self._own = own
        self._homes = rules.homes(sizes, belongs)
        self._clock, self._patience_s = clock, patience_s
        self._shunned_until_s = [0.0] * len(peers)

    def is_ours(self, number: int, failed: Collection[int] = ()) -> bool:
        """Whether this node fetches a unit from the store, where others have failed to give it."""
        return rules.owner(self._homes[number], len(self._stores), failed) == self._own

    def take(self, number: int, view: memoryview) -> bool:
        """Fill memory with a unit that another node fetches. False: fetch it from the store."""
        failed: list[int] = []
        while len(failed) <= MOST_FAILED:
            node = rules.owner(self._homes[number], len(self._stores), failed)
            if node in (-1, self._own):
                return False
            if self._ask(node, number, view, failed):
                return True
            failed.append(node)
        return False

    def _ask(self, node: int, number: int, view: memoryview, failed: Sequence[int]) -> bool:
        path = "-".join(map(str, (number, *failed)))
        until_s = self._clock() + self._patience_s
        while self._shunned_until_s[node] <= self._clock() < until_s:
            try:
                self._stores[node].read_into(path, 0, [view])
                return True
            except StoreError as error:
                if not is_busy(error):
                    if not isinstance(error, NotFound):
                        self._shunned_until_s[node] = self._clock() + SHUNNED_S
                    return False
            time.sleep(_PAUSE_S)
        return False

    def close(self) -> None:
        """Hang up on all of them."""
        for store in self._stores:
            store.close()


def is_busy(error: StoreError) -> bool:
    """Whether a node said that a unit is coming."""
    return is_transient(error) and "503" in error.what


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, giver: PeerServer) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.giver = listening, giver
        self.places = threading.BoundedSemaphore(_MOST_REQUESTS)

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer hung up."""


class PeerServer:
    """Gives units to other nodes, in threads of its own."""

    def __init__(
        self,
        listening: socket.socket,
        area: Area,
        place: str,
        key: str,
        wait_for: Callable[[int, float], bool],
        is_ours: Callable[[int, Collection[int]], bool],
    ) -> None:
        self.area, self.place = area, place
        self.wait_for, self.is_ours = wait_for, is_ours
        self.expected = f"Bearer {key}".encode()
        self.sent_bytes = 0
        self._server = _Server(listening, self)

    def start(self) -> None:
        """Give from now on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="peer-units", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it gives."""
        return int(self._server.socket.getsockname()[1])

    def stop(self) -> None:
        """Give nothing more. Once, after `start`."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60.0
    server: _Server

    def do_GET(self) -> None:
        """Give a unit."""
        giver = self.server.giver
        said = self.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(said, giver.expected):
            self._say(401)
            return
        _, _, rest = self.path.partition("/")
        place, _, text = rest.partition("/")
        number, *failed = _numbers(text)
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if place != giver.place or not 0 <= number < giver.area.table.units or asked is None:
            self._say(404)
            return
        with self.server.places:
            self._give(giver, number, failed)

    def _give(self, giver: PeerServer, number: int, failed: Collection[int]) -> None:
        if giver.area.states[number] != HERE:
            if not giver.is_ours(number, failed):
                self._say(404)
                return
            if not giver.wait_for(number, WAIT_S):
                self._say(503)
                return
        view = giver.area.data(number)
        self.send_response(206)
        self.send_header("Content-Length", str(len(view)))
        self.send_header("Content-Range", f"bytes 0-{len(view) - 1}/{len(view)}")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(view)
            giver.sent_bytes += len(view)

    def _say(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


def _numbers(text: str) -> list[int]:
    """Return the numbers of `7-1-2`; of anything else, one that no unit has."""
    parts = text.split("-")
    is_sound = len(parts) <= 1 + MOST_FAILED and all(
        part.isascii() and part.isdigit() and len(part) < 10 for part in parts
    )
    return [int(part) for part in parts] if is_sound else [-1]
