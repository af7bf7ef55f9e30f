"""One attempt on this node: starts its ranks, watches them end, has what is left ended, and says what was seen.

Everything is reported through `report(event)`; nothing is decided here. asyncio is imported where it is needed, which is
after the first workers have been started.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.process_tree import send_group
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.actions import Collect, EndAttempt
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted, NodeEvent, RankExited, SpawnFailed
from robust_run.launcher.model.job import Progress, RankEvidence, Rung, Sights, flows_of, ops_of
from robust_run.launcher.model.resume_events import Damage, ResumePoint

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.ending import Ending
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.progress import Files
    from robust_run.launcher.agent.startup.watching import StartWatch
    from robust_run.launcher.agent.watching.rank_watch import RankWatch
    from robust_run.launcher.agent.workers.environment import RankPlace
    from robust_run.launcher.model.start_notes import Seen

#: Ranks of a job whose rings are kept even when all went well, for the heat-map of its page: half a MiB each.
KEPT_WHEN_WELL = 64
#: How long output may keep coming after the last process is gone.
OUTPUT_S = 1.0


class Attempt:
    """The processes of one attempt on this node. Made by the agent when it is ordered to."""

    def __init__(
        self,
        place: RankPlace,
        node: Node,
        node_id: str,
        report: Callable[[NodeEvent], None],
        deliver: Callable[[Seen], None],
    ) -> None:
        self.number = place.attempt
        self.first_rank = place.first_rank
        self.replay_steps = place.replay_steps
        self.started_at_s = node.clock.monotonic_s()
        self.workers: list[Worker] = []
        self.fenced_after_s: float | None = None
        """Set when the node ends it by itself, for want of a controller."""
        self._place = place
        self._node = node
        self._node_id = node_id
        self._report = report
        self._deliver = deliver
        self._watch: RankWatch | None = None
        self._how: tuple[Rung, ...] = ()
        self._start_watch: StartWatch | None = None
        self._files = self._progress_files()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: Ending | None = None
        """How its processes are ended; None: not watched yet."""
        self._end_task: asyncio.Task[None] | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it was ordered to end."""
        return self._end_task is not None

    def start(self) -> None:
        """Start every rank, then report AttemptStarted, or SpawnFailed for the first that could not be."""
        number = self.number
        try:
            if number > 0:
                self._node.serve_store(number)  # forked workers connect within milliseconds
            self.workers, self._how, why = self._node.start_workers(self._place)
            if number == 0:
                self._node.serve_store(number)
                self._node.launch_warm(age_s=0.0)
        except PlatformError as error:
            rank = self.first_rank + len(self.workers)
            self._report(SpawnFailed(attempt=number, rank=rank, message=str(error), node=self._node_id))
            return
        point = self._place.resume or ResumePoint()
        self._report(
            AttemptStarted(
                attempt=number,
                node=self._node_id,
                pids=tuple(worker.pid for worker in self.workers),
                port=self._place.port,
                how=self._how,
                why=why,
                nccl=self._node.nccl_news,
                resumes_s=point.created_unix_s,
                resumes_step=point.step,
                resumes_uuid=point.uuid,
                resumes_name=point.name,
                resumes_source=point.source,
            )
        )

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """See ends from now on; those that have already happened are seen at once."""
        from robust_run.launcher.agent.ending import Ending
        from robust_run.launcher.agent.startup.watching import watch_start
        from robust_run.launcher.agent.watching.rank_watch import RankWatch

        self._loop = loop
        self._ending = Ending(self.workers, self._node)
        for worker in self.workers:
            descriptor = worker.watch()
            if descriptor >= 0:
                loop.add_reader(descriptor, self._look_at, worker)
            elif worker.exit_code is None:
                self._poll(worker)
        if self.workers and not self.is_ending:
            node = self._node
            self._watch = RankWatch(
                self.number,
                self._node_id,
                self.workers,
                node.run_directory,
                node.clock,
                node.spec,
                self._report,
                self._deliver,
                node.looking,
                self._place.world_size,
                node.ras_address,
            )
            self._watch.start(loop)
            self._start_watch = watch_start(self, node, self._how, self._deliver)
            if self._start_watch is not None:
                self._start_watch.start(loop)

    def collect(self, order: Collect) -> None:
        """Look at the ranks and deliver what is seen; where nothing runs, that."""
        if self._watch is None or self.is_ending:
            self._deliver(Sights(attempt=order.attempt, number=order.number, sights=()))
        else:
            self._watch.collect(order)

    def keep_traces(self) -> None:
        """Copy the ranks' rings to the run directory."""
        if self._watch is not None:
            self._watch.keep()

    def _poll(self, worker: Worker) -> None:
        """Look 20 times a second: for kernels without pidfd_open."""
        assert self._loop is not None
        if worker.exit_code is None:
            self._look_at(worker)
            self._loop.call_later(0.05, self._poll, worker)

    def _look_at(self, worker: Worker) -> None:
        if worker.exit_code is not None or not worker.poll(self._node.clock.monotonic_s()):
            return
        if self._loop is not None and worker.pidfd >= 0:
            self._loop.remove_reader(worker.pidfd)
        worker.close()
        if self.is_ending:
            if self._ending is not None and not self.living():
                self._ending.workers_gone.set()
            return  # its evidence follows with the others'
        exited = RankExited(attempt=self.number, rank=worker.rank, exit_code=worker.exit_code or 0)
        self._node.saw_end(exited.exit_code)
        if exited.exit_code != 0:
            from robust_run.launcher.agent import evidence

            tail = self._node.router.tail(self.number, worker.rank)[0]
            exited = evidence.seen_at_once(exited, self._node.run_directory, tail)
        self._report(exited)

    def pass_on(self, number: int) -> list[int]:
        """Hand a signal to the ranks that have a handler for it; return them."""
        return [worker.rank for worker in self.workers if worker.pass_on(number)]

    def tell_resized(self) -> None:
        """Say SIGWINCH to the workers: their terminals are no process's controlling terminal, so the kernel does not."""
        for worker in self.workers:
            if worker.exit_code is None:
                send_group(worker.pid, signal.SIGWINCH)

    def living(self) -> list[int]:
        """Return the ranks whose process has not been seen to end."""
        return [worker.rank for worker in self.workers if worker.exit_code is None]

    def end(self, order: EndAttempt) -> None:
        """End every process of the attempt and then report AttemptEnded.

        Ordered again without grace: at once. With a longer one: the workers, which have their signal, get that; a scheduler
        that ends all nodes may reach one after its peers, as survivors of which it was told to end a moment before.
        """
        assert self._loop is not None and self._ending is not None
        if self._end_task is None:
            from robust_run.launcher.agent.ending import report_failure

            self._end_task = self._loop.create_task(self._end(self._ending, order))
            self._end_task.add_done_callback(report_failure)
        self._ending.heed(order)

    def reap_orphans(self) -> None:
        """Collect the exit statuses of what workers left behind and we adopted."""
        if self._ending is not None:
            self._ending.sweep().left()

    async def _end(self, ending: Ending, order: EndAttempt) -> None:
        node = self._node
        if self._watch is not None:
            self._watch.stop()
        if self._start_watch is not None:
            self._start_watch.stop()
        await ending.run(order)
        await node.router.finish_attempt(self.number, OUTPUT_S)
        ranks = tuple(self._evidence(worker) for worker in self.workers)
        for worker in self.workers:
            if self._loop is not None and worker.pidfd >= 0:
                self._loop.remove_reader(worker.pidfd)
            worker.close()
        self._tell_last_sights(ranks)
        self._report(
            AttemptEnded(
                attempt=self.number,
                node=self._node_id,
                started_at_s=self.started_at_s,
                ranks=ranks,
                progress=self._progress(ranks),
                fenced_after_s=self.fenced_after_s,
                damage=self._damage(),
            )
        )
        self._put_away(ranks)

    def _damage(self) -> Damage | None:
        """Return what the first rank that said so found wrong with what the ranks were told to start from."""
        point, path = self._place.resume, self._place.resume_path
        if point is None or not path:
            return None
        from robust_run.launcher.agent.damage import found_by

        folders = dict(zip((worker.rank for worker in self.workers), self.rank_folders(), strict=True))
        return found_by(folders, point, path)

    def rank_folders(self) -> list[str]:
        """Return the folders of the ranks in the run directory, by local rank."""
        return [self._node.run_directory.rank(self.number, worker.rank) for worker in self.workers]

    def _tell_last_sights(self, ranks: tuple[RankEvidence, ...]) -> None:
        """Say what the ranks' records hold, before their end is known, if one of them failed. Not where seconds count."""
        watch = self._watch
        if watch is None or self.fenced_after_s is not None:
            return

        def tell() -> None:
            sights = watch.last_sights(ranks, ops_of(self._place.world_size), flows_of(self._place.world_size))
            if sights:
                self._deliver(Sights(attempt=self.number, number=-1, sights=sights))

        self._node.looking.run(tell)

    def _put_away(self, ranks: tuple[RankEvidence, ...]) -> None:
        """Keep the ranks' records where one ended badly, or the job is small, and clear the memory: when all who wait have
        been told.
        """
        watch = self._watch
        if watch is None:
            return
        if self._place.world_size <= KEPT_WHEN_WELL or any(rank.exit_code != 0 for rank in ranks):
            self._node.looking.run(watch.keep)
        watch.forget()

    def _evidence(self, worker: Worker) -> RankEvidence:
        from robust_run.launcher.agent import evidence

        stderr, spoke_at_s = self._node.router.tail(self.number, worker.rank)
        found = evidence.gather(worker, self.number, self._node.run_directory, stderr, spoke_at_s)
        finding = self._node.workplace.blame(found.finding, found.exit_code)
        return self._node.explain(msgspec.structs.replace(found, finding=finding))

    def _progress_files(self) -> Files:
        if paths := self._node.spec.progress_paths:
            from robust_run.launcher.agent.progress import look_at

            return look_at(paths, self._node.run_directory.path)
        return {}

    def _progress(self, ranks: tuple[RankEvidence, ...]) -> Progress:
        files = self._progress_files()
        return Progress(
            lived_s=self._node.clock.monotonic_s() - self.started_at_s,
            steps=max((rank.steps for rank in ranks if rank.steps is not None), default=None),
            files_advanced=any(self._files.get(path) != seen for path, seen in files.items()),  # not one that vanished
        )
