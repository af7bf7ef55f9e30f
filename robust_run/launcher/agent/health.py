"""Node health, the agent's side: starts the sensors' process, passes on what it says, and knows why a rank was killed.

Nothing here waits: all that may hang is in the sensors' process. Imported after the first workers have been started.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.harmless import Harmless
from robust_run.health.rules.workers import COUNTED, KILLED, event_of
from robust_run.health.sensors import memory, usage
from robust_run.health.sensors.handle import SensorsHandle, environment
from robust_run.health.sensors.process import SensorSetup, WatchedAttempt
from robust_run.health.sensors.settings import SensorSettings, TrainingSettings
from robust_run.health.sensors.types import AbsentError, SensorWorld
from robust_run.health.types import Event, Finding
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.health_events import HealthSeen, SensorsBegan
from robust_run.launcher.model.job import RankEvidence

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.attempt import Attempt as RunningAttempt
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.model.job import JobSpec

#: What is absent is known by then, and is told as one event.
ABSENT_AFTER_S = 5.0
MOST_SEEN = 200
NVML_VARIABLE = "ROBUST_NVML"
"""Path of libnvidia-ml where the loader does not find it, or no device file says that there is a driver."""
_FIRST = (".absent", ".unreadable")


class AgentHealth:
    """One agent's."""

    def __init__(
        self, node: Node, node_id: str, loop: asyncio.AbstractEventLoop, report: Callable[[NodeEvent], None]
    ) -> None:
        self._node = node
        self._node_id = node_id
        self._loop = loop
        self._report = report
        self._harmless = Harmless("watching this node's health", node.say)
        self._handle: SensorsHandle | None = None
        self._seen: deque[Event] = deque(maxlen=MOST_SEEN)
        self._absent: list[str] | None = []
        """What cannot be watched, until it is told."""
        self._counters: usage.Counters | None = None
        self._reports = ""
        """Folder of the report files of this attempt."""
        self._training = TrainingSettings()
        self._kills: int | None = None
        """Processes of the job's cgroup that were killed for memory, when last looked at."""
        self._is_shared = False
        """Others are in that cgroup, too."""

    def begin(self) -> None:
        """Start the sensors."""
        self._harmless.run(self._begin)

    def _begin(self) -> None:
        place = self._node.workplace.place
        setup = setup_of(
            self._node.spec, self._node.run_directory.path, os.environ, image=place.name if place is not None else ""
        )
        self._training = setup.settings.training
        self._handle = SensorsHandle(self._loop, self._node.helpers.start, environment(), setup, self._tell)
        self._handle.begin()
        self._loop.call_later(ABSENT_AFTER_S, self._tell_absent)

    def attempt_began(self, attempt: RunningAttempt) -> None:
        """Watch what the workers of this attempt report; the files of the one before are not needed any more."""

        def tell() -> None:
            import shutil

            folders, number = self._node.run_directory, attempt.number
            self._reports = folders.reports(number) if self._training.on else ""
            shutil.rmtree(folders.reports(number - 1), ignore_errors=True)
            if self._handle is not None:
                reports = (folders.reports(number),)
                self._handle.attempt(WatchedAttempt(training=True, reports=reports, began_s=attempt.started_at_s))

        self._harmless.run(tell)

    def attempt_ended(self) -> None:
        """No workers run: silence on the network is not odd."""
        handle = self._handle
        if handle is not None:
            self._harmless.run(lambda: handle.attempt(WatchedAttempt()))

    def end(self) -> None:
        """Let the sensors' process end."""
        if self._handle is not None:
            self._handle.end()

    # --- what sensors say

    def _tell(self, event: Event) -> None:
        self._harmless.run(lambda: self._tell_now(event))

    def _tell_now(self, event: Event) -> None:
        if event.kind == "note" and self._absent is not None and event.name.endswith(_FIRST):
            self._absent.append(f"{event.name}: {event.detail}"[:300])
            return
        if event.kind == "alert" and event.name in COUNTED:
            self.look(is_news=False)  # it is told with its own time, and must not be counted again at the next death
        if event.name == memory.SHARED:
            self._is_shared = True
        if event.kind == "alert" or event.name in COUNTED:  # another's kill is a note: no rank of ours died of it
            self._seen.append(event)
        if event.name == "sensors.ended" and event.kind == "note":
            self._node.say(event.detail)
        self._report(HealthSeen(node=self._node_id, event=event, at_unix_s=self._node.clock.unix_s()))

    def _tell_absent(self) -> None:
        absent, self._absent = tuple(self._absent or ()), None
        self._harmless.run(lambda: self._report(SensorsBegan(node=self._node_id, absent=absent)))

    def usage(self) -> tuple[float, ...]:
        """Return what this node did since the last call (see `health.sensors.usage`)."""
        before, now_s = self._counters, self._node.clock.monotonic_s()

        def count() -> None:
            self._counters = usage.read(SensorWorld(pid=os.getpid()), now_s)

        did_well = self._harmless.run(count)
        did = usage.between(before, self._counters) if did_well and before and self._counters else ()
        return (*did, *usage.following(self._handle.measured())) if did and self._handle is not None else did

    # --- why a rank was killed

    def look(self, *, is_news: bool = True) -> None:
        """Count what the kernel killed for memory: a kill that is counted later than this is news."""
        self._harmless.run(lambda: self._count(is_news))

    def _count(self, is_news: bool) -> None:
        try:
            now = memory.read(SensorWorld(pid=os.getpid())).in_cgroup
        except AbsentError:
            now = None
        if is_news and now is not None and self._kills is not None and now > self._kills:
            detail, name = "the limit of the job's cgroup was reached, or the node is full", "memory.oom_kill"
            if self._is_shared or memory.is_shared(SensorWorld(pid=os.getpid())):
                detail, name = memory.SHARED_WORDS, memory.IN_SHARED_CGROUP
            at_s, count = self._node.clock.monotonic_s(), float(now - self._kills)
            self._seen.append(Event(name=name, kind="alert", subject="", detail=detail, at_s=at_s, value=count))
        self._kills = now

    def explain(self, rank: RankEvidence) -> RankEvidence:
        """Return what is known of a rank with the kernel's word, if it was killed for memory: such a rank says nothing.

        One that failed by itself is known by what it reported last, too: the agent may not have read that yet.
        """
        if rank.signalled_at_s is None and rank.exit_code is not None and rank.exit_code > 0 and self._reports:
            known = [rank]
            self._harmless.run(lambda: known.append(self._with_last_words(rank)))
            rank = known[-1]
        if rank.exit_code not in KILLED or rank.signalled_at_s is not None:
            return rank
        self.look()
        event = event_of(rank.rank, rank.pid, rank.exit_code, rank.finding, tuple(self._seen), rank.exited_at_s)
        if event is None or event.name != "worker.host_memory":
            return rank
        finding = Finding(kind="out_of_memory", line=event.detail, trouble="host_memory")
        return msgspec.structs.replace(rank, finding=finding)

    def _with_last_words(self, rank: RankEvidence) -> RankEvidence:
        from robust_run.health.metrics import last_words, reports

        said = last_words.nan_at_the_end(reports.file_of(self._reports, rank.rank), self._training)
        return msgspec.structs.replace(rank, finding=last_words.with_nan(rank.finding, said))


def begin(
    node: Node,
    node_id: str,
    loop: asyncio.AbstractEventLoop,
    report: Callable[[NodeEvent], None],
    attempt: RunningAttempt | None,
) -> AgentHealth:
    """Watch this node from now on. `attempt`: the one that runs here, if any does."""
    health = AgentHealth(node, node_id, loop, report)
    node.explain = health.explain
    health.begin()
    if attempt is not None:
        health.attempt_began(attempt)
    return health


def setup_of(spec: JobSpec, run_path: str, env: Mapping[str, str], *, image: str = "") -> SensorSetup:
    """Return where the sensors look and how often. No file is looked at here: a file system may hang.

    `image`: what is mounted for the workers, for people.
    """
    settings = SensorSettings()
    if spec.health_rules:
        from robust_run.health.rules.book import parse

        settings = parse(spec.health_rules).sensors
    ckpt_dir = "" if spec.ckpt_dir is None or "://" in spec.ckpt_dir else spec.ckpt_dir
    folders = (run_path, ckpt_dir, tempfile.gettempdir())
    return SensorSetup(
        settings=settings,
        folders=tuple(dict.fromkeys(filter(None, folders))),
        event_folders=spec.metrics_from,
        nvml_library=env.get(NVML_VARIABLE, ""),
        visible_gpus=env.get("CUDA_VISIBLE_DEVICES"),
        image=image,
    )
