"""The API's routes. Imports aiohttp, so nothing imports this before somebody has connected.

    GET  /v1/status  /v1/nodes
    GET  /v1/incidents
    GET  /v1/scene?samples=N                        what all ranks do now: their calls, stacks, processes
    POST /v1/traces                                 copy all rings to the run directory
    GET  /v1/events?after=N&limit=M&wait=SECONDS    lines of the journal from number N; negative: from the end
    POST /v1/nodes/{name}/evict  /v1/nodes/{name}/readmit  /v1/restart  /v1/stop    body: operations.OperatorWish
    /v1/checks...                                   checks of nodes: see `check_routes`
    /v1/code...                                     versions of the code: see `code_routes`
    GET  /                                          the status as text; to a browser, a page (`page_routes`)
    GET  /metrics?nodes=K                           numbers for Prometheus; K: name the K slowest nodes
    GET  /v1/live?first=N&count=M                   what `robust top` shows, with M nodes from place N on

The job's token may do all of it; the reading token (see `records.token.reading_token`) what `may_read` names: numbers, status and
pages, and neither actions nor code, stacks or the journal; the metrics token, which is of all jobs of a secret, `/metrics` alone.

An error is `{"error": "one line"}`. Actions take JSON only: no page of another site can send that for a browser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import msgspec
from aiohttp import web

from robust_run.clock import Clock
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator.server.access import AccessTokens, may_read
from robust_run.launcher.operator.server.check_routes import CheckRoutes
from robust_run.launcher.operator.server.code_routes import CodeRoutes
from robust_run.launcher.operator.server.journal_pages import MOST_LINES, JournalPages
from robust_run.launcher.operator.server.live_routes import LiveRoutes
from robust_run.launcher.operator.server.page_routes import PageRoutes
from robust_run.launcher.operator.server.wishes import json_of, wish_of
from robust_run.launcher.operator.views import operations, show
from robust_run.launcher.operator.views import status as views
from robust_run.launcher.operator.views.operations import Granted, OperationRefusedError, OperatorWish, number_in
from robust_run.launcher.operator.views.status_types import ActionView, NodesView
from robust_run.tracer.types import Scene

LARGEST_BODY_BYTES = 64 << 10

#: How long a body may take to arrive.
BODY_S = 5.0

#: Longest wait of a long poll, and how often the journal is looked at meanwhile.
LONGEST_WAIT_S = 30.0
LOOK_EVERY_S = 0.2

#: Bytes of the journal that are counted before other things on the loop get their turn.
COUNTED_BYTES = 4 << 20

#: Looks at each rank for one question, and how long all nodes may take together.
MOST_SAMPLES = 10
SCENE_S = 15.0

#: Nodes on the page for a browser.
SHOWN_NODES = 200

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "robust-run"}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate(Protocol):
    """What the server knows of a connection."""

    def is_trusted(self, protocol: asyncio.BaseProtocol) -> bool:
        """Whether it needs no token."""
        ...

    def let_in(self, protocol: asyncio.BaseProtocol) -> None:
        """Its request is allowed, and may take its time."""
        ...


class Api:
    """The routes over one controller."""

    def __init__(
        self, controller: ControllerHandle, clock: Clock, token: str, gate: Gate, metrics_token: str = ""
    ) -> None:
        """`metrics_token`: lets in to `/metrics`; empty: no such token does."""
        self._controller = controller
        self._clock = clock
        self._tokens = AccessTokens(token, metrics_token)
        self._gate = gate
        self._pages = JournalPages(controller.journal_path)
        self._live = LiveRoutes(controller, clock)
        self._counting = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """Return all routes."""
        app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[self._guard], logger=_quiet())
        PageRoutes(self._controller, self._clock, self._page).add_to(app)
        app.router.add_get("/v1/status", self._status, allow_head=False)
        app.router.add_get("/v1/nodes", self._nodes, allow_head=False)
        app.router.add_get("/v1/events", self._events, allow_head=False)
        app.router.add_get("/v1/incidents", self._incidents, allow_head=False)
        app.router.add_get("/v1/scene", self._scene, allow_head=False)
        app.router.add_post("/v1/traces", self._keep_traces)
        app.router.add_post("/v1/nodes/{name}/evict", self._evict)
        app.router.add_post("/v1/nodes/{name}/readmit", self._readmit)
        app.router.add_post("/v1/restart", self._restart)
        app.router.add_post("/v1/stop", self._stop)
        self._live.add_to(app)
        CodeRoutes(self._controller, self._clock).add_to(app)
        CheckRoutes(self._controller).add_to(app)
        return app

    async def start(self) -> None:
        """Make ready to answer; then `protocol` may be called."""
        app = self.application()
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, logger=_quiet(), shutdown_timeout=0.5)
        await self._runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """Return what reads and answers one connection."""
        assert self._runner is not None and self._runner.server is not None
        return self._runner.server()

    async def close(self, patience_s: float) -> None:
        """Let long polls answer, then end what is under way."""
        self._closing.set()
        if self._runner is not None:
            with suppress(asyncio.TimeoutError):  # the server cuts connections off
                await asyncio.wait_for(self._runner.cleanup(), patience_s + 1.0)

    # --- who may ask, and what an error looks like ---

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            may = (
                "all"
                if self._gate.is_trusted(request.protocol)
                else self._tokens.allow(request.headers.get("Authorization", ""))
            )
            if not may:
                response: web.StreamResponse = _error(
                    401, "this needs the job's token: the file token of its run directory"
                )
                response.headers["WWW-Authenticate"] = 'Basic realm="robust-run: the job token is the password"'
            elif may == "read" and not may_read(request.method, request.path):
                response = _error(403, "this token may only look; this needs the file token of the run directory")
            elif may == "metrics" and (request.method, request.path) != ("GET", "/metrics"):
                response = _error(
                    403, "this token reads /metrics alone; the file token.read of the run directory shows more"
                )
            else:
                self._gate.let_in(request.protocol)
                response = await handler(request)
        except OperationRefusedError as error:
            response = _error(error.status, str(error))
        except web.HTTPException as error:
            response = _error(error.status, f"{request.method} {operations.one_line(request.path)}: {error.reason}")
        except Exception as error:  # told to whoever asked; a job does not end for it
            response = _error(500, f"a fault of robust-run: {type(error).__name__}: {error}; please report it")
        response.headers.update(_HEADERS)
        response.force_close()
        return response

    # --- reading ---

    async def _status(self, _: web.Request) -> web.Response:
        return json_of(await self._live.job())

    async def _nodes(self, _: web.Request) -> web.Response:
        return json_of(self._node_views())

    async def _page(self, _: web.Request) -> web.Response:
        lines = [*show.status_lines(await self._live.job()), "", *show.node_lines(self._node_views(), SHOWN_NODES)]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain", charset="utf-8")

    def _node_views(self) -> NodesView:
        return views.node_views(self._controller.state(), self._controller.silent_s, self._clock.monotonic_s())

    async def _events(self, request: web.Request) -> web.Response:
        after = int(number_in(request.query, "after", 1, -1e12, 1e12))
        limit = int(number_in(request.query, "limit", MOST_LINES, 1, MOST_LINES))
        give_up_s = self._clock.monotonic_s() + number_in(request.query, "wait", 0, 0, LONGEST_WAIT_S)
        await self._count_lines()
        if after < 0:
            after = max(self._pages.lines + after, 1)  # what comes meanwhile is not skipped
        while True:
            page = self._pages.page(after, limit)
            if page.events or self._closing.is_set() or self._clock.monotonic_s() >= give_up_s:
                return json_of(page)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), LOOK_EVERY_S)
            await self._count_lines()

    async def _incidents(self, _: web.Request) -> web.Response:
        return web.Response(
            body=msgspec.json.encode(tuple(self._controller.incidents())), content_type="application/json"
        )

    async def _scene(self, request: web.Request) -> web.Response:
        samples = int(number_in(request.query, "samples", 1, 1, MOST_SAMPLES))
        seen: asyncio.Future[Scene] = asyncio.get_running_loop().create_future()
        async with self._looking:  # one at a time: looking costs every rank a little
            if not self._controller.observe(lambda scene: None if seen.done() else seen.set_result(scene), samples):
                raise operations.no_rank_runs(self._controller.state())
            try:
                return json_of(await asyncio.wait_for(seen, SCENE_S))
            except asyncio.TimeoutError:
                raise OperationRefusedError(504, f"the nodes did not answer within {SCENE_S:g} s") from None

    async def _keep_traces(self, request: web.Request) -> web.Response:
        await _wish(request)
        if not self._controller.keep_traces():
            raise operations.no_rank_runs(self._controller.state())
        return json_of(ActionView(done="the rings of all ranks are copied to the run directory"))

    async def _count_lines(self) -> None:
        async with self._counting:
            try:
                while not self._pages.catch_up(COUNTED_BYTES):
                    await asyncio.sleep(0)
            except OSError as error:
                raise OperationRefusedError(503, f"cannot read the journal: {error.strerror}") from error

    # --- acting ---

    async def _evict(self, request: web.Request) -> web.Response:
        wish, name = await _wish(request), request.match_info["name"]
        state = self._controller.state()
        return self._do(operations.evict(self._controller.facts, state, name, wish, self._clock.unix_s()))

    async def _readmit(self, request: web.Request) -> web.Response:
        wish = await _wish(request)
        return self._do(operations.readmit(self._controller.state(), request.match_info["name"], wish))

    async def _restart(self, request: web.Request) -> web.Response:
        wish = await _wish(request)
        return self._do(operations.restart(self._controller.state(), wish))

    async def _stop(self, request: web.Request) -> web.Response:
        wish = await _wish(request)
        return self._do(operations.stop(self._controller.facts, self._controller.state(), wish))

    def _do(self, granted: Granted) -> web.Response:
        if granted.event is not None:
            self._controller.tell(granted.event)
        return json_of(granted.answer)


async def _wish(request: web.Request) -> OperatorWish:
    return await wish_of(request, OperatorWish, "the action", LARGEST_BODY_BYTES, BODY_S)


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode({"error": operations.one_line(message)}),
        content_type="application/json",
    )


def _quiet() -> logging.Logger:
    """What strangers send to the port is not worth a line on the job's terminal."""
    logger = logging.getLogger("robust_run.api")
    logger.propagate = False
    logger.disabled = True
    return logger
