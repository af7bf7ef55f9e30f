"""Routes for whoever watches: the job with its course, its nodes in pages with the odd ones first, numbers for Prometheus."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from aiohttp import web

from robust_run.clock import Clock
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator import gauges
from robust_run.launcher.operator.reading.startup_phases import StartupPhases
from robust_run.launcher.operator.views import live
from robust_run.launcher.operator.views import status as views
from robust_run.launcher.operator.views.course_reader import CourseReader
from robust_run.launcher.operator.views.operations import OperationRefusedError, number_in
from robust_run.launcher.operator.views.status_types import JobView, LiveNode
from robust_run.report.metrics import exposition

#: How often the nodes are sorted anew, however many watch: 10,000 of them take some 50 ms of the loop that keeps leases alive.
SORT_EVERY_S = 1.0
#: How often the folder of checkpoints is looked at, and how long that may take.
CHECKPOINT_EVERY_S = 30.0
CHECKPOINT_S = 5.0


class LiveRoutes:
    """What is told of one controller's job, again and again."""

    def __init__(self, controller: ControllerHandle, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._reader = CourseReader(controller.journal_path)
        self._phases: StartupPhases | None = None
        self._reading = asyncio.Lock()
        self._is_known = False
        self._sorted: tuple[float, list[LiveNode]] | None = None
        self._checkpoint: gauges.NewestCheckpoint | None = None
        self._looked_at_s = float("-inf")
        self._looking: asyncio.Future[gauges.NewestCheckpoint | None] | None = None

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/metrics", self._metrics, allow_head=False)
        app.router.add_get("/v1/live", self._live, allow_head=False)

    async def job(self) -> JobView:
        """Return the status, with the job's course as far as its journal can be read."""
        now_unix_s = (
            self._clock.unix_s()
        )  # before: what is not known then has not happened, so that counters never fall
        await self._read_on()
        incidents = self._controller.incidents()
        last = views.incident_view(incidents[-1]) if incidents else None
        job = views.job_view(self._controller.facts, self._controller.state(), now_unix_s, last_incident=last)
        if not self._is_known:
            return job
        steps, now_s = self._controller.steps(), self._clock.monotonic_s()
        return live.with_course(job, self._reader.course, steps, now_s, starts=self._starts().totals())

    def _starts(self) -> StartupPhases:
        if self._phases is None:
            self._phases = StartupPhases(self._controller.facts.run_directory)
        return self._phases

    async def _read_on(self) -> None:
        """Read what the journal has got since; others get their turn between pieces."""
        async with self._reading:
            with suppress(OSError):  # it cannot be written either, and that was said
                while not self._reader.read_more():
                    await asyncio.sleep(0)
                self._is_known = True

    def nodes(self) -> list[LiveNode]:
        """Return all nodes, odd ones first; sorted at most once a second."""
        now_s = self._clock.monotonic_s()
        if self._sorted is None or now_s - self._sorted[0] >= SORT_EVERY_S:
            state, steps = self._controller.state(), self._controller.steps()
            nodes = views.node_views(state, self._controller.silent_s, now_s)
            here = steps.nodes if steps.attempt == state.attempt else {}
            self._sorted = now_s, live.live_nodes(nodes, here)
        return self._sorted[1]

    async def _live(self, request: web.Request) -> web.Response:
        first = int(number_in(request.query, "first", 0, 0, 1e9))
        count = int(number_in(request.query, "count", 100, 0, live.MOST_NODES))
        view = live.live_view(await self.job(), self.nodes(), self._controller.incidents(), first=first, count=count)
        return web.Response(body=msgspec.json.encode(view), content_type="application/json")

    # --- numbers

    async def _metrics(self, request: web.Request) -> web.Response:
        named = int(number_in(request.query, "nodes", 0, 0, gauges.MOST_NAMED))
        facts = await self._facts(named)
        try:
            body, content_type = exposition(gauges.families(facts), request.headers.get("Accept", ""))
        except ImportError as error:
            raise OperationRefusedError(
                501, f"metrics need prometheus-client ({error}): pip install prometheus-client"
            ) from None
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _facts(self, named: int) -> gauges.GaugeFacts:
        job = await self.job()
        state = self._controller.state()
        code = state.code
        silences = [node.silent_s for node in self.nodes() if node.silent_s is not None]
        return gauges.GaugeFacts(
            job=job,
            incidents=self._controller.incidents(),
            nccl=self._controller.nccl_rates(),
            course=self._reader.course if self._is_known else None,
            steps=self._controller.steps(),
            code=code.records[code.running - 1] if 0 < code.running <= len(code.records) else None,
            max_restarts=self._controller.facts.policy.max_restarts,
            restarts_without_progress=state.trail.fruitless,
            silence_s=max(silences, default=None),
            notices=self._controller.notices(),
            checkpoint=await self._newest_checkpoint(),
            phases=self._starts().of_newest(),
            name_nodes=named,
        )

    async def _newest_checkpoint(self) -> gauges.NewestCheckpoint | None:
        """Return the newest checkpoint. A file system that hangs is waited for once, and not asked again while it does."""
        folder = self._controller.facts.ckpt_dir
        if not folder or (self._looking is not None and not self._looking.done()):
            return self._checkpoint
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_at_s < CHECKPOINT_EVERY_S:
            return self._checkpoint
        self._looked_at_s = now_s
        self._looking = asyncio.get_running_loop().run_in_executor(None, newest_checkpoint, folder)
        with suppress(asyncio.TimeoutError):
            self._checkpoint = await asyncio.wait_for(asyncio.shield(self._looking), CHECKPOINT_S)
        return self._checkpoint


def newest_checkpoint(folder: str) -> gauges.NewestCheckpoint | None:
    """Return when the newest checkpoint in a folder was written; None where there is none, or it cannot be read."""
    from robust_run.ckpt_io.newest import age_of, newest_path

    path = newest_path(folder)
    age = age_of(path) if path is not None else None
    return None if age is None else gauges.NewestCheckpoint(written_unix_s=age[0], step=age[1])
