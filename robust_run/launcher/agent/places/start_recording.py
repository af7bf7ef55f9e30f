"""Recording of a start: what it reads of its image until the first step, kept for later starts.

The agent's loop is never held up: what asks a block server runs in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.model.job import JobSpec

if TYPE_CHECKING:
    from robust_run.prefetch.inside.asking import AskedServer
    from robust_run.prefetch.launch import Prepared
    from robust_run.prefetch.record import Ended
    from robust_run.prefetch.window import ImageStart, RecordingWindow


class RecordedPart(NamedTuple):
    """Something of a place that a block server shows: its image, or the set-up that is laid over that."""

    what: str
    """What people call it."""
    served: AskedServer
    prepared: Prepared
    report: Callable[[ImageStart], None]
    """Is given what was read, once that is over."""


class StartRecording:
    """The recording of one place on one node."""

    def __init__(
        self,
        spec: JobSpec,
        where: str,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`where`: for messages."""
        self.concluding: threading.Thread | None = None
        """What asks the block server."""
        self._spec, self._where, self._clock = spec, where, clock
        self._say = say
        self._group_rank = 0
        self._first_store = ""
        self._window: RecordingWindow | None = None
        """From the first attempt on: nodes may wait for each other before."""

    def begin(self, group_rank: int, store: str) -> None:
        """The first attempt is about to start. `store`: the address of its store, the same on all nodes."""
        self._group_rank, self._first_store = group_rank, store

    def look(self, *, stepped: bool, running: bool) -> Ended | None:
        """Return what is to be concluded now; None: nothing, or it was before."""
        from robust_run.prefetch.window import RecordingWindow

        now_s = self._clock.monotonic_s()
        self._window = self._window or RecordingWindow(now_s, self._spec.record_window_s)
        return self._window.look(now_s, stepped=stepped, running=running)

    def conclude(self, parts: Iterable[RecordedPart], ended: Ended) -> None:
        """Keep what was read, in a thread."""
        served = [part for part in parts if part.served.control_path]
        if served:
            self.concluding = threading.Thread(target=self._conclude_all, args=(served, ended), daemon=True)
            self.concluding.start()

    def _conclude_all(self, parts: Sequence[RecordedPart], ended: Ended) -> None:
        for part in parts:
            self._conclude_now(part, ended)

    def _conclude_now(self, part: RecordedPart, ended: Ended) -> None:
        from robust_run.prefetch import window
        from robust_run.prefetch.record import keep, launch_id

        prepared = part.prepared
        try:
            recording, start = window.close(part.served, prepared, ended)
            self._say(window.sentence(start, part.what))
            if prepared.plan.record:
                # Each node keeps what it read; together they count as one launch.
                launch = launch_id(self._spec.run_id, self._first_store) if self._spec.many is not None else ""
                keep(prepared.store, prepared.key, [recording], launch, self._group_rank)
            part.report(start)
        except RobustRunError as error:
            self._say(f"what the start read of {self._where} ({part.what}) is not kept: {error}")
