"""Connections to web servers: kept and used again; redirects followed and remembered; silence ended."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from robust_run.store import paths
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import AccessDenied, Cancelled, Stalled, StoreError, Unavailable, from_os_error
from robust_run.store.http_body import Reply
from robust_run.store.types import StoreOptions

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_MOST_REMEMBERED = 65536
#: What a reply's end may be read for, so that its connection can be kept.
_LEFT_OVER_BYTES = 64 << 10

#: What is left as it is in a URL's path or query; a "%" is taken for the escape that it most likely is.
_SAFE = "/%:@!$&'()*+,;=?~"

Origin = tuple[str, str, int]
"""Scheme, host, port."""


class Connections:
    """All connections of one store."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        """`url` is the store's own: only its origin is ever shown the token and the headers."""
        self._url, self._options = paths.shown(url), options
        self._origin = origin_of(url)
        self._own_headers = _own_headers(url, options)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._busy: set[http.client.HTTPConnection] = set()
        self._moved: dict[str, str] = {}
        self._tls: ssl.SSLContext | None = None

    @contextmanager
    def asking(
        self, method: str, url: str, path: str, headers: dict[str, str], cancel: Cancellation | None
    ) -> Iterator[Reply]:
        """Give the reply to a request, redirects followed. Network errors of the block become ours (`path` is for messages)."""
        with self._lock:
            target = self._moved.get(url, url)
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                with self._asking_once(method, target, path, headers, cancel) as reply:
                    moved = reply.getheader("Location") if reply.status in _REDIRECTS else None
                    if moved is None:
                        self._remember(url, target, reply.status)
                        yield reply
                        return
                target = self._redirected(target, moved, path)
            raise StoreError(self._url, path, f"more than {_MOST_REDIRECTS} redirects")
        except Cancelled:
            raise
        except StoreError:
            self._forget(url, target)
            raise

    def close(self) -> None:
        """Close all connections; those that are in use are woken."""
        with self._lock:
            idle, self._idle = self._idle, {}
            for connection in self._busy:
                interrupt(connection)
        for connection in (each for kept in idle.values() for each in kept):
            connection.close()

    def _remember(self, url: str, target: str, status: int) -> None:
        """Keep where a file was moved to, until that place says no: signed URLs expire."""
        with self._lock:
            if status >= http.client.BAD_REQUEST and status != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                if self._moved.pop(url, None) is not None:
                    raise Unavailable(self._url, "", f"the place it was redirected to says {status}: asking again")
            elif target != url and len(self._moved) < _MOST_REMEMBERED:
                self._moved[url] = target

    def _forget(self, url: str, target: str) -> None:
        """Ask the file's own place next time: where it was moved to did not answer, or with something else, as a login page."""
        with self._lock:
            if self._moved.get(url) == target:
                del self._moved[url]

    def _redirected(self, target: str, moved: str, path: str) -> str:
        found = urllib.parse.urljoin(target, moved)
        scheme = paths.scheme_of(found)
        if scheme not in ("http", "https") or (scheme == "http" and paths.scheme_of(target) == "https"):
            raise AccessDenied(self._url, path, f"redirected to {paths.shown(found)[:200]}: that is not followed")
        try:
            origin_of(found)
        except ValueError as error:
            raise StoreError(self._url, path, f"redirected to {paths.shown(found)[:200]}: {error}") from error
        return found

    @contextmanager
    def _asking_once(
        self, method: str, target: str, path: str, headers: dict[str, str], cancel: Cancellation | None
    ) -> Iterator[Reply]:
        origin = origin_of(target)
        connection, reply, can_be_kept = None, None, False
        try:
            with self._naming(path, cancel, origin):
                connection, reply = self._send(origin, method, target, headers, cancel)
                with cancel.calling(reply.interrupt) if cancel is not None else nullcontext():
                    yield reply
                    if not reply.isclosed() and (reply.length or 0) <= _LEFT_OVER_BYTES:
                        reply.read(_LEFT_OVER_BYTES)
                can_be_kept = reply.isclosed() and not reply.will_close
        finally:
            if reply is not None and not can_be_kept:
                reply.close()  # where the server ends the connection, it is the reply that holds it
            if connection is not None:
                self._give_back(origin, connection, can_be_kept)

    def _send(
        self, origin: Origin, method: str, target: str, headers: dict[str, str], cancel: Cancellation | None
    ) -> tuple[http.client.HTTPConnection, Reply]:
        """Send a request; once more on a fresh connection if a kept one turns out to be closed."""
        parts = urllib.parse.urlsplit(target)
        place, query = urllib.parse.quote(parts.path or "/", safe=_SAFE), urllib.parse.quote(parts.query, safe=_SAFE)
        asked = f"{place}?{query}" if query else place
        own = self._own_headers if origin == self._origin else {}
        sent = {"Accept-Encoding": "identity", "User-Agent": "robust-run", **own, **headers}
        while True:
            connection, is_kept = self._connection(origin)
            try:
                wake = partial(interrupt, connection)
                with cancel.calling(wake) if cancel is not None else nullcontext():
                    connection.request(method, asked, headers=sent)
                    reply = connection.getresponse()
                assert isinstance(reply, Reply)
                return connection, reply
            except BaseException as error:
                self._give_back(origin, connection, False)
                if not is_kept or not isinstance(error, ConnectionError | http.client.BadStatusLine):
                    raise

    def _connection(self, origin: Origin) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection to an origin, and whether it has been used before."""
        with self._lock:
            if self._pid != os.getpid():  # the parent's connections are not ours to talk on
                self._pid, self._idle, self._busy = os.getpid(), {}, set()
            kept = self._idle.get(origin)
            if kept:
                connection = kept.pop()
                self._busy.add(connection)
                return connection, True
        connection = self._connected(*origin)
        with self._lock:
            self._busy.add(connection)
        return connection, False

    def _connected(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        wait_s = self._options.connect_s
        if scheme == "https":
            tls = self._tls_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=wait_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=wait_s)
        try:
            connection.connect()
        except TimeoutError as error:
            connection.close()
            raise Unavailable(self._url, "", f"no connection to {host}:{port} in {wait_s:g} s") from error
        except BaseException:
            connection.close()
            raise
        connection.response_class = Reply
        connection.sock.settimeout(self._options.stall_s)
        return connection

    def _give_back(self, origin: Origin, connection: http.client.HTTPConnection, can_be_kept: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if can_be_kept and connection.sock is not None:
                self._idle.setdefault(origin, []).append(connection)
                return
        connection.close()

    def _tls_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=self._options.ca_file)
            return self._tls

    @contextmanager
    def _naming(self, path: str, cancel: Cancellation | None, origin: Origin) -> Iterator[None]:
        """Turn what networks do to the block into our errors."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if cancel is not None and cancel.cancelled:
                raise Cancelled(self._url, path, "called off") from error
            ours = self._ours(error, path)
            if origin != self._origin:
                ours.what += f" (it redirected to {origin[1]}:{origin[2]})"
            raise ours from error

    def _ours(self, error: Exception, path: str) -> StoreError:
        if isinstance(error, TimeoutError):
            return Stalled(self._url, path, f"the server sent no byte for {self._options.stall_s:g} s")
        if isinstance(error, ssl.SSLCertVerificationError):
            return AccessDenied(self._url, path, f"its certificate is not trusted ({error.verify_message})")
        if isinstance(error, socket.gaierror):
            return Unavailable(self._url, path, f"no address for its host: {error.strerror}")
        if isinstance(error, OSError):
            found = from_os_error(error, self._url, path)
            return found if error.errno else Unavailable(self._url, path, str(error) or type(error).__name__)
        if isinstance(error, http.client.HTTPException):
            return Unavailable(self._url, path, f"broken reply: {type(error).__name__} {str(error)[:100]}")
        return StoreError(self._url, path, f"{type(error).__name__}: {str(error)[:200]}")


def interrupt(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that reads from a connection, from another one."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def origin_of(url: str) -> Origin:
    """Return where a URL's host is to be reached. Raises ValueError for a port that is none."""
    parts = urllib.parse.urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def _own_headers(url: str, options: StoreOptions) -> dict[str, str]:
    """Return what only the store's own origin is sent."""
    headers = dict(options.headers)
    parts = urllib.parse.urlsplit(url)
    if options.token:
        headers["Authorization"] = f"Bearer {options.token}"
    elif parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers
