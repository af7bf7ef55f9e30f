"""Serves the API: on a Unix socket in the run directory, and on a TCP port for whoever has a token of the job.

The port is this machine's alone unless an address was asked for: what it shows and does is the business of few.

Nothing heavy is imported until somebody connects: most jobs are never asked, and the loop that serves this also keeps
agents' leases alive.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator.reading import place as places
from robust_run.launcher.operator.server.connections import ApiConnections

if TYPE_CHECKING:
    import ssl

    from robust_run.launcher.operator.server.routes import Api
    from robust_run.launcher.operator.server.scrape_target import ScrapeTarget

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - only where that was asked for

#: How long requests under way may take when the server closes.
CLOSING_S = 1.0


class HttpPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where to serve over TCP."""

    address: str = ""
    """To listen on, `0.0.0.0` or `::` for all; empty: what only this machine reaches."""
    port: int = 0
    """0: a free one."""
    name: str = ""
    """By which other machines find this one where it listens on all addresses; empty: the host name."""
    tls_cert: str = ""
    tls_key: str = ""
    """Empty: in the file of the certificate."""
    tls_ca: str = ""
    """With which clients can check the certificate; empty: with the certificate itself."""
    metrics_token: str = ""
    """See `records.token.metrics_token`; empty: there is none."""
    prometheus_dir: str = ""
    """Where the file is to be that leads Prometheus here; empty: nowhere."""
    run_id: str = ""
    """What the run is called there."""


class ApiServer:
    """The API of one job. Methods are called on the event loop; nothing here ever ends the job."""

    def __init__(
        self,
        controller: ControllerHandle,
        run_directory: str,
        token: str,
        clock: Clock,
        complain: Callable[[str], None],
        http: HttpPlace | None = None,
    ) -> None:
        """`complain` gets a line when something asked for cannot be served. `http` None: no TCP port; it needs a token."""
        self._controller = controller
        self._run_directory = run_directory
        self._token = token
        self._clock = clock
        self._complain = complain
        self._http = http
        self._tls: ssl.SSLContext | None = None
        self._listeners: dict[socket.socket, bool] = {}
        self._socket_path = ""
        self._socket_inode = 0
        self._connections: ApiConnections | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._api: Api | None = None
        self._closed = False
        self._target: ScrapeTarget | None = None
        self.place: places.ApiEndpoint | None = None
        """Where it serves; None before `start`."""

    def start(self) -> None:
        """Listen, and write `api.json`. What cannot be served is complained about and left out."""
        self._loop = asyncio.get_running_loop()
        self._listen_here()
        url = self._listen_tcp() if self._http is not None else ""
        self.place = places.ApiEndpoint(
            socket=self._socket_path,
            http=url,
            tls_ca=(self._http.tls_ca or self._http.tls_cert) if self._http and url else "",
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=places.this_boot(),
        )
        try:
            places.write_place(self._run_directory, self.place)
        except OSError as error:
            self._complain(f"robust status will not find this job: cannot write {places.PLACE_NAME}: {error.strerror}")
        if self._http is not None and url and self._http.prometheus_dir:
            self._show_prometheus(url, self._http)
        for listener in self._listeners:
            self._loop.add_reader(listener, self._wake)

    def _show_prometheus(self, url: str, http: HttpPlace) -> None:
        from robust_run.launcher.operator.server import scrape_target  # for jobs that are to be found

        self._target = scrape_target.ScrapeTarget(
            folder=http.prometheus_dir, run_id=http.run_id, url=url, host=socket.gethostname()
        )
        try:
            scrape_target.write(self._target)
        except OSError as error:
            self._complain(
                f"--prometheus-dir {http.prometheus_dir}: Prometheus will not find this job: {error.strerror}"
            )

    def _listen_here(self) -> None:
        path = os.path.abspath(os.path.join(self._run_directory, places.SOCKET_NAME))
        try:
            self._listeners[places.listen_unix(path)] = True
            self._socket_inode = os.stat(path).st_ino
        except OSError as error:
            self._complain(f"robust status cannot ask this job: no socket at {path!r}: {error.strerror}")
            return
        self._socket_path = path

    def _listen_tcp(self) -> str:
        """Listen on the port asked for, else on a free one; return the URL, or nothing."""
        assert self._http is not None
        if not self._token:
            self._complain("no web server: it needs the job's token")
            return ""
        try:
            self._tls = _tls(self._http)
        except RobustRunError as error:
            self._complain(f"no web server: {error}")
            return ""
        for port in dict.fromkeys((self._http.port, 0)):
            try:
                listener = _listen_on(self._http.address, port)
            except OSError as error:
                then = "; a free one is taken" if port else "; the job goes on without a web server"
                at = f" on --http-host {self._http.address}" if self._http.address else ""
                self._complain(f"--http-port {port}{at}: {error.strerror or error}{then}")
                continue
            self._listeners[listener] = False
            name = self._http.address or LOOPBACK
            if name in EVERYWHERE:
                name = self._http.name or socket.gethostname()
            host = f"[{name}]" if ":" in name else name
            return f"http{'s' if self._tls else ''}://{host}:{listener.getsockname()[1]}"
        return ""

    async def close(self) -> None:
        """Answer who waits, then end all connections and remove the socket and `api.json`. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._unpublish()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        if self._connections is not None:
            self._connections.stop_accepting()
        if self._api is not None:
            await self._api.close(CLOSING_S)
        if self._connections is not None:
            await self._connections.close()
        for listener in self._listeners:
            listener.close()
        if self._beginning is not None:
            await asyncio.wait([self._beginning], timeout=CLOSING_S)

    def _unpublish(self) -> None:
        """Remove what leads here, but not what another controller has put in its place."""
        if self.place is not None:
            places.remove_place(self._run_directory, self.place)
        if self._target is not None:
            from robust_run.launcher.operator.server import scrape_target

            scrape_target.remove(self._target)
        with suppress(OSError):
            if self._socket_path and os.stat(self._socket_path).st_ino == self._socket_inode:
                os.unlink(self._socket_path)

    # --- the first connection: import what answers it ---

    def _wake(self) -> None:
        """Somebody connects for the first time: import the web server beside the loop, then accept."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        threading.Thread(target=self._import, name="api import", daemon=True).start()

    def _import(self) -> None:
        problem = ""
        try:
            import robust_run.launcher.operator.server.routes  # noqa: F401
        except Exception as error:  # a broken installation must not end the job
            problem = f"robust status and the web server do not work: {type(error).__name__}: {error}"
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._imported, problem)

    def _imported(self, problem: str) -> None:
        if self._closed:
            return
        if problem:
            self._complain(problem)
            for listener in self._listeners:
                listener.close()
            return
        self._beginning = self._loop.create_task(self._begin())
        self._beginning.add_done_callback(self._done)

    async def _begin(self) -> None:
        from robust_run.launcher.operator.server.routes import Api

        connections = ApiConnections(self._listeners, self._tls)
        metrics = self._http.metrics_token if self._http is not None else ""
        api = Api(self._controller, self._clock, self._token, connections, metrics)
        await api.start()
        if self._closed:
            await api.close(0.0)
            return
        self._api, self._connections = api, connections
        connections.accept(api.protocol)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"robust status and the web server have a fault: {type(error).__name__}: {error}")


def _listen_on(address: str, port: int) -> socket.socket:
    """Return a listening socket; `::` takes IPv6 and IPv4 alike where the machine can. Raises OSError."""
    if address == "::" and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    else:
        family, _, _, _, where = socket.getaddrinfo(
            address or LOOPBACK, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.create_server((str(where[0]), port), family=family, backlog=128)
    listener.setblocking(False)
    return listener


def _tls(http: HttpPlace) -> ssl.SSLContext | None:
    """Return what the port speaks, None for plain HTTP. Nobody is asked for a certificate: the token lets in."""
    if not http.tls_cert:
        return None
    from robust_run.tls import server_context

    return server_context(http.tls_cert, http.tls_key, "")
