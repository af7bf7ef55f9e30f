"""Routes for browsers: the job's page, which renews itself, and those of its incidents.

    GET  /  /report.html                 the page; to whoever does not ask for HTML, the status as text
    GET  /page                           the same page, for its own script
    GET  /incidents/NNNN.html            an incident
    GET  /incidents/NNNN.json  /incidents/NNNN.scene.json
    GET  /attempt_N/RANK/stderr.log      the end of a log that an incident names, as text

Files are read and pages are drawn in a thread: the loop also keeps agents' leases alive. What the core knows is looked at on it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from robust_run.clock import Clock
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator.pages.page_reading import (
    CheckpointList,
    JournalTail,
    files_in,
    log_in,
    scene_in,
    scene_mark,
    with_pictures,
)
from robust_run.launcher.operator.server.incident_cache import IncidentCache
from robust_run.launcher.operator.views.accepting import accepts
from robust_run.launcher.operator.views.operations import OperationRefusedError
from robust_run.launcher.operator.views.page_data import incident_page, job_page
from robust_run.report.pages.incident.page import incident_html
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.types import Drawn
from robust_run.report.types import Incident

#: A page is drawn once for all who ask within this time.
SAME_S = 1.0
#: Files beside an incident's page that are handed out.
_FILE = re.compile(r"[0-9]{4,6}(\.scene)?\.json")

_Handler = Callable[[web.Request], Awaitable[web.Response]]


class PageRoutes:
    """The pages of one controller."""

    def __init__(self, controller: ControllerHandle, clock: Clock, as_text: _Handler) -> None:
        """`as_text` answers who wants no HTML."""
        self._controller = controller
        self._clock = clock
        self._as_text = as_text
        self._tail = JournalTail(controller.journal_path)
        self._checkpoints: CheckpointList | None = None
        self._reading = asyncio.Lock()
        """Held while the journal is taken in and looked at; never while a page is drawn."""
        self._drawing = asyncio.Lock()
        self._incident_pages = IncidentCache()
        self._page = b""
        self._drawn_at_s = float("-inf")

    def add_to(self, app: web.Application) -> None:
        """Answer these routes."""
        app.router.add_get("/", self._root, allow_head=False)
        app.router.add_get("/report.html", self._root, allow_head=False)
        app.router.add_get("/page", self._job, allow_head=False)
        app.router.add_get("/incidents/{name}", self._incident, allow_head=False)
        app.router.add_get("/{path:attempt_[0-9]+/[0-9]+/[a-z.]+}", self._log, allow_head=False)

    async def _root(self, request: web.Request) -> web.Response:
        wants = request.headers.get("Accept", "")
        return await (self._job(request) if "text/html" in wants else self._as_text(request))

    async def _job(self, _: web.Request) -> web.Response:
        async with self._drawing:
            if self._clock.monotonic_s() - self._drawn_at_s > SAME_S:
                self._page = await self._draw()
                self._drawn_at_s = self._clock.monotonic_s()
        return _html(self._page)

    async def _draw(self) -> bytes:
        controller, facts = self._controller, self._controller.facts
        async with self._reading:
            await asyncio.to_thread(self._catch_up)
            kept = await asyncio.to_thread(self._kept.kept)
            incidents = tuple(controller.incidents())
            page = job_page(facts, controller.state(), self._tail.history, incidents, self._drawn(), kept=kept)
        return await asyncio.to_thread(
            lambda: _encoded(job_html(with_pictures(page, facts.run_directory, facts.memory)))
        )

    def _drawn(self, incident: Incident | None = None) -> Drawn:
        """Return how the job is at this moment, for its page or an incident's."""
        now_s, state = self._clock.unix_s(), self._controller.state()
        if incident is None:
            return Drawn(at_s=now_s, life="running", served=True)
        node = incident.verdict.nodes[0] if incident.verdict.nodes else ""
        would = accepts(self._controller.facts.policy, state, node)
        return Drawn(at_s=now_s, life="running", served=True, accepts=would)

    async def _incident(self, request: web.Request) -> web.Response:
        name, facts = request.match_info["name"], self._controller.facts
        if _FILE.fullmatch(name):
            return await self._file(name)
        number = int(name[:-5]) if re.fullmatch(r"[0-9]{4,6}\.html", name) else 0
        incidents: Sequence[Incident] = tuple(self._controller.incidents())
        if not 1 <= number <= len(incidents):
            raise OperationRefusedError(404, f"there is no incident {name[:20]!r}; there are {len(incidents)}")
        async with self._reading:
            await asyncio.to_thread(self._catch_up)
            kept = await asyncio.to_thread(self._kept.kept)
            drawn = self._drawn(incidents[number - 1])
            files = await asyncio.to_thread(files_in, facts.run_directory, incidents[number - 1])
            page = incident_page(facts, self._tail.history, incidents, number, None, drawn, kept=kept, files=files)
        scene_at = await asyncio.to_thread(scene_mark, facts.run_directory, number)

        def draw() -> bytes:
            scene = scene_in(facts.run_directory, number)
            return _encoded(incident_html(msgspec.structs.replace(page, scene=scene)))

        return _html(await self._incident_pages.page(page, scene_at, self._clock.monotonic_s(), draw))

    async def _log(self, request: web.Request) -> web.Response:
        """Answer with the end of a log that an incident names: no other file is handed out."""
        path = request.match_info["path"]
        if not any(path == each.path for incident in self._controller.incidents() for each in incident.evidence):
            raise OperationRefusedError(404, f"no incident names {path!r}")
        try:
            content = await asyncio.to_thread(log_in, self._controller.facts.run_directory, path)
        except OSError as error:
            raise OperationRefusedError(404, f"cannot read {path!r}: {error.strerror or error}") from None
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
        return web.Response(body=content, content_type="text/plain", charset="utf-8", headers=headers)

    async def _file(self, name: str) -> web.Response:
        path = os.path.join(self._controller.facts.run_directory, "incidents", name)
        try:
            content = await asyncio.to_thread(_read, path)
        except OSError:
            raise OperationRefusedError(404, f"there is no {name}") from None
        return web.Response(body=content, content_type="application/json")

    @property
    def _kept(self) -> CheckpointList:
        if self._checkpoints is None:
            header = self._tail.header
            self._checkpoints = CheckpointList(header.job.ckpt_dir if header is not None else None)
        return self._checkpoints

    def _catch_up(self) -> None:
        try:
            self._tail.catch_up()
        except OSError as error:
            raise OperationRefusedError(503, f"cannot read the journal: {error.strerror}") from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(512 << 20)


def _encoded(page: str) -> bytes:
    return page.encode(errors="backslashreplace")


def _html(content: bytes) -> web.Response:
    headers = {"X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
    return web.Response(body=content, content_type="text/html", charset="utf-8", headers=headers)
