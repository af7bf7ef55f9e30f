"""Read-ahead for workers that run where the agent does: files of their environment (`--prefetch-env`), or an image we are in.

Both are hints: the job runs as it would without them, also if something goes wrong here.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.agent.thread_messages import ThreadMessages, write_report
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.prefetch.environment.lists import default_folder, roots_of
from robust_run.prefetch.environment.starting import EnvironmentReport, EnvironmentStart
from robust_run.prefetch.launch import Prepared, prepare
from robust_run.prefetch.mount import warm
from robust_run.prefetch.record import Ended, Recording, fingerprint, keep, layout_of
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import QUANTUM_BYTES
from robust_run.prefetch.window import RecordingWindow

_END_S = 10.0
#: A file of which more than this part is in memory already says nothing of what a start reads.
_WARM_PART = 0.05


class Ahead(Protocol):
    """Something that is read ahead on a node."""

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what the first worker of the first attempt gets to note what it opens."""
        ...

    def look(self, pids: Sequence[int], *, stepped: bool) -> None:
        """Call now and then. `stepped`: an optimizer step was made here."""
        ...

    def stop(self, *, did_well: bool) -> None:
        """End it, after the workers."""
        ...


def launch_of(spec: JobSpec, python: str) -> str:
    """Return the fingerprint of a job's launch; `python`: see `record.fingerprint`."""
    nodes = spec.many.most if spec.many is not None else 1
    argv = spec.argv[1:] if spec.is_python else spec.argv
    return fingerprint(argv, python, layout_of(spec.nproc * nodes, nodes))


class EnvironmentAhead:
    """The files of the workers' Python environment."""

    def __init__(
        self, spec: JobSpec, env: Mapping[str, str], clock: Clock, notes: str, report: str, say: Callable[[str], None]
    ) -> None:
        """Begins to read. `notes`, `report`: files for what a worker opens, and for what it all brought."""
        self._say, self._report, self._notes = ThreadMessages(say), report, notes
        self._clock, self._window_s = clock, spec.record_window_s
        self._window: RecordingWindow | None = None
        """From the first attempt on: nodes may wait for each other before."""
        self._ending: threading.Thread | None = None
        self._start: EnvironmentStart | None = None
        python = shutil.which(spec.argv[0]) if spec.is_python else None
        folder = default_folder(env)
        roots = roots_of(os.path.abspath(python)) if python else ()
        if not roots or folder is None:
            why = (
                "there is no home folder for its lists" if roots else "the workers' Python is no environment of its own"
            )
            say(f"--prefetch-env does nothing: {why}")
            return
        version = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        launch = launch_of(spec, version)
        self._start = EnvironmentStart(
            folder, roots, launch, os.uname().machine, notes, window_s=spec.record_window_s, clock=clock.monotonic_s
        )
        self._start.warm()

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """See `Ahead`."""
        return self._start.arm(env) if self._start is not None else {}

    def look(self, pids: Sequence[int], *, stepped: bool) -> None:
        """See `Ahead`."""
        if self._look(stepped=stepped) is not None:
            self._end(tuple(pids), worth_keeping=True)
        self._say.flush()

    def stop(self, *, did_well: bool) -> None:
        """See `Ahead`."""
        if self._look(stepped=did_well, running=False) is not None:
            self._end((), worth_keeping=did_well)
        if self._ending is not None:
            self._ending.join(_END_S)
        self._say.flush()

    def _look(self, *, stepped: bool, running: bool = True) -> Ended | None:
        now_s = self._clock.monotonic_s()
        self._window = self._window or RecordingWindow(now_s, self._window_s)
        return self._window.look(now_s, stepped=stepped, running=running)

    def _end(self, pids: tuple[int, ...], *, worth_keeping: bool) -> None:
        self._ending = threading.Thread(target=self._finish, args=(pids, worth_keeping), daemon=True)
        self._ending.start()

    def _finish(self, pids: tuple[int, ...], worth_keeping: bool) -> None:
        if self._start is None:
            return
        # A worker that noted nothing (its Python ignores PYTHONPATH, or was forked) says nothing of what a start opens.
        has_noted = os.path.exists(self._notes) and os.path.getsize(self._notes) > 0
        found = self._start.finish(pids, keep=worth_keeping and has_noted)
        for problem in found.problems:
            self._say(f"environment: {problem}")
        self._say(_sentence(found))
        write_report(self._report, found, self._say)


def _sentence(found: EnvironmentReport) -> str:
    if not found.listed:
        return f"environment: no launch like this was recorded yet; this one opened {found.opened} files"
    hits = f", hit rate {100 * found.hit_rate:.0f} %" if found.hit_rate is not None else ""
    read = f"{found.warmed_bytes / 1e6:.0f} MB were read ahead in {found.warmed_s:.1f} s"
    return f"environment: list of {found.listed} files{hits}; {read}"


class MountedAhead:
    """The file of an image in which we are already, mounted by Apptainer: its hot blocks are read past the mount."""

    def __init__(self, spec: JobSpec, image: ImageUse, clock: Clock, say: Callable[[str], None]) -> None:
        """Begins to read."""
        self._say, self._clock, self._began_s = ThreadMessages(say), clock, clock.monotonic_s()
        self._window_s = spec.record_window_s
        self._window: RecordingWindow | None = None
        self._stop = threading.Event()
        self._watch: warm.PageCacheWatch | None = None
        self._prepared: Prepared | None = None
        self._threads: list[threading.Thread] = []
        try:
            prepared = self._prepared = prepare(image.url, image.cache, launch_of(spec, "image"), os.uname().machine)
            if prepared.hot is not None:
                self._spawn(lambda: self._read(prepared))
            else:
                self._begin_watch(prepared)
        except RobustRunError as error:
            self._say(f"image {image.url}: it is mounted already, and nothing is read ahead of it: {error}")

    def _read(self, prepared: Prepared) -> None:
        assert prepared.hot is not None
        runs = hotlist.plan(prepared.hot, prepared.block_map, lambda _block: False)
        try:
            count = warm.warm(prepared.image_url, runs, prepared.block_map, stop=self._stop)
            self._say(f"image {prepared.image_url}: mounted already; {count / 1e6:.0f} MB were read ahead")
        except OSError as error:
            self._say(f"image {prepared.image_url}: {error.strerror}: nothing is read ahead")

    def _begin_watch(self, prepared: Prepared) -> None:
        watch = warm.PageCacheWatch(lambda: warm.resident(prepared.image_url, prepared.block_map))
        watch.start()
        self._watch = watch
        quanta = -(-prepared.block_map.size_bytes // QUANTUM_BYTES)
        if len(watch.before) > quanta * _WARM_PART:
            self._watch = None
            watch.stop()
            self._say(f"image {prepared.image_url}: much of it is in memory already: this start is not recorded")

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002 - see `Ahead`
        """Nothing: what is read is seen from outside."""
        return {}

    def look(self, pids: Sequence[int], *, stepped: bool) -> None:  # noqa: ARG002 - see `Ahead`
        """See `Ahead`."""
        ended = self._look(stepped=stepped)
        if ended is not None:
            self._spawn(lambda: self._keep(ended))
        self._say.flush()

    def _look(self, *, stepped: bool, running: bool = True) -> Ended | None:
        now_s = self._clock.monotonic_s()
        self._window = self._window or RecordingWindow(now_s, self._window_s)
        return self._window.look(now_s, stepped=stepped, running=running)

    def _keep(self, ended: Ended) -> None:
        watch, prepared = self._watch, self._prepared
        if watch is None or prepared is None:
            return
        recording = Recording(
            touches=tuple(watch.stop()), window_s=self._clock.monotonic_s() - self._began_s, ended=ended
        )
        try:
            keep(prepared.store, prepared.key, [recording])
        except RobustRunError as error:
            self._say(f"image {prepared.image_url}: what the start read is not kept: {error}")

    def stop(self, *, did_well: bool) -> None:
        """See `Ahead`."""
        self._stop.set()
        ended = self._look(stepped=did_well, running=False)
        if ended is not None:
            self._spawn(lambda: self._keep(ended))
        for thread in self._threads:
            thread.join(_END_S)
        self._say.flush()
