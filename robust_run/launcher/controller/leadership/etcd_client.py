"""Requests to etcd's JSON gateway over HTTP: several endpoints, of which any will do; each request bounded in time.

The standard library's blocking client in threads: it is small, speaks TLS, and needs no new dependency.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.address import EtcdAddress
from robust_run.launcher.controller.leadership.etcd_messages import EtcdFailure
from robust_run.launcher.controller.leadership.threads import in_thread
from robust_run.launcher.controller.leadership.types import CoordinatorRefused, CoordinatorUnreachable
from robust_run.version import __version__

Reply = TypeVar("Reply")

MOST_REPLY_BYTES = 64 << 20

_PASSING = {
    1: "cancelled",
    4: "deadline exceeded",
    10: "aborted",
    13: "internal",
    14: "unavailable",
}
"""Failures, by gRPC's code, that another member or a later moment may not have."""
_IDLE_CONNECTIONS = 4
_CLEANING_UP_S = 0.5
"""How much longer than its sockets a thread may take."""


class Transport(Protocol):
    """Something that asks etcd."""

    async def call(self, path: str, request: msgspec.Struct, reply: type[Reply], timeout_s: float) -> Reply:
        """Return etcd's answer to a request.

        Raises CoordinatorUnreachable if no endpoint answered in time: the request may have been carried out, or may be
        later. Raises CoordinatorRefused with etcd's words if it will not do that.
        """
        ...

    async def close(self) -> None:
        """Close idle connections."""
        ...


class EtcdClient:
    """A Transport over HTTP or HTTPS. Prefers the endpoint that answered last; each gets its share of the time."""

    def __init__(self, address: EtcdAddress, now_s: Callable[[], float] = time.monotonic) -> None:
        """Raise UserError for a file of certificates that cannot be used."""
        self._address = address
        self._endpoints = deque(address.endpoints)
        self._idle: dict[tuple[str, int], list[http.client.HTTPConnection]] = {}
        self._closed = False
        self._now_s = now_s
        self._stuck: set[object] = set()
        self._tls = _tls_context(address.ca_file) if address.tls else None

    @property
    def busy(self) -> bool:
        """Whether a request is under way, perhaps one that nobody waits for any more."""
        return bool(self._stuck)

    async def call(self, path: str, request: msgspec.Struct, reply: type[Reply], timeout_s: float) -> Reply:
        """See Transport."""
        body = msgspec.json.encode(request)
        try:
            raw = await in_thread(
                lambda: self._ask_any(path, body, timeout_s),
                timeout_s + _CLEANING_UP_S,
                f"{self._address}",
                self._stuck,
            )
        except TimeoutError as error:
            raise CoordinatorUnreachable(f"{error}; is etcd running there?") from error
        try:
            return msgspec.json.decode(raw, type=reply, strict=False)
        except msgspec.MsgspecError as error:
            raise CoordinatorRefused(f"{self._address} does not answer as etcd 3.4 or newer does: {error}") from error

    async def close(self) -> None:
        """See Transport. Requests under way close theirs when they end."""
        self._closed = True
        for connections in list(self._idle.values()):
            for connection in connections:
                connection.close()

    def _ask_any(self, path: str, body: bytes, timeout_s: float) -> bytes:
        """Ask one endpoint after the other."""
        until_s = self._now_s() + timeout_s
        problem = "no time was left to ask"
        endpoints = list(self._endpoints)
        for index, endpoint in enumerate(endpoints):
            rest_s = until_s - self._now_s()
            if rest_s <= 0:
                break
            try:
                raw = self._ask(endpoint, path, body, rest_s / (len(endpoints) - index))
            except CoordinatorUnreachable as error:
                problem = str(error)
                continue
            self._prefer(endpoint)
            return raw
        raise CoordinatorUnreachable(problem)

    def _prefer(self, endpoint: tuple[str, int]) -> None:
        while self._endpoints[0] != endpoint:
            self._endpoints.rotate(-1)

    def _ask(self, endpoint: tuple[str, int], path: str, body: bytes, timeout_s: float) -> bytes:
        """Ask one endpoint; a connection that it had closed meanwhile is replaced."""
        where = f"etcd at {endpoint[0]}:{endpoint[1]}"
        kept = True
        while True:
            connection = self._kept(endpoint)
            if connection is None:
                kept, connection = False, self._connection(endpoint, timeout_s)
            try:
                return self._exchange(connection, endpoint, path, body, timeout_s)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if kept and not isinstance(error, TimeoutError):
                    continue
                raise CoordinatorUnreachable(f"{where} does not answer: {_words(error, timeout_s)}") from error

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        endpoint: tuple[str, int],
        path: str,
        body: bytes,
        timeout_s: float,
    ) -> bytes:
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        headers = {"Content-Type": "application/json", "User-Agent": f"robust-run/{__version__}"}
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        raw = response.read(MOST_REPLY_BYTES + 1)
        if len(raw) > MOST_REPLY_BYTES:
            connection.close()
            raise CoordinatorRefused(f"etcd at {endpoint[0]}:{endpoint[1]} answers more than {MOST_REPLY_BYTES} bytes")
        if response.will_close:
            connection.close()
        else:
            self._keep(endpoint, connection)
        _raise_failure(response.status, raw, f"etcd at {endpoint[0]}:{endpoint[1]}")
        return raw

    def _connection(self, endpoint: tuple[str, int], timeout_s: float) -> http.client.HTTPConnection:
        host, port = endpoint
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _kept(self, endpoint: tuple[str, int]) -> http.client.HTTPConnection | None:
        with contextlib.suppress(KeyError, IndexError):
            return self._idle[endpoint].pop()
        return None

    def _keep(self, endpoint: tuple[str, int], connection: http.client.HTTPConnection) -> None:
        idle = self._idle.setdefault(endpoint, [])
        if len(idle) < _IDLE_CONNECTIONS and not self._closed:
            idle.append(connection)
            if not self._closed:
                return  # else `close` may have looked before it was there
        connection.close()


def _tls_context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--tls-ca {ca_file!r} cannot be used: {error}; give a file of PEM certificates") from error


def _raise_failure(status: int, raw: bytes, where: str) -> None:
    """Raise what an answer that is no success means."""
    if status == http.client.OK and not raw.startswith(b'{"error"'):
        return
    try:
        failure = msgspec.json.decode(raw, type=EtcdFailure, strict=False)
    except msgspec.MsgspecError:
        failure = EtcdFailure(message=raw[:200].decode("utf-8", "replace").strip())
    words = f"{where} refuses: {failure.text or 'no reason given'} (HTTP {status})"
    unknown = not failure.grpc_code and status >= http.client.INTERNAL_SERVER_ERROR
    if unknown or failure.grpc_code in _PASSING or "too many requests" in failure.text:
        raise CoordinatorUnreachable(words)
    raise CoordinatorRefused(words)


def _words(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:.3g} s"
    return (
        (error.strerror if isinstance(error, OSError) and error.strerror else "") or str(error) or type(error).__name__
    )
