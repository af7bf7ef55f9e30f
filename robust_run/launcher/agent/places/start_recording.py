"""Recording of a start: what it reads of its image until the first step, kept for later starts.

The agent's loop is never held up: what asks a block server runs in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.model.job import JobSpec

if TYPE_CHECKING:
    from robust_run.prefetch.inside import Inside
    from robust_run.prefetch.launch import Prepared
    from robust_run.prefetch.record import Ended
    from robust_run.prefetch.window import ImageStart, RecordingWindow


class StartRecording:
    """The recording of one place on one node."""

    def __init__(
        self,
        spec: JobSpec,
        where: str,
        clock: Clock,
        say: Callable[[str], None],
        report: Callable[[ImageStart], None],
    ) -> None:
        """`where`: for messages. `report` is given what was read, once that is over."""
        self.concluding: threading.Thread | None = None
        """What asks the block server."""
        self._spec, self._where, self._clock = spec, where, clock
        self._say, self._report = say, report
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

    def conclude(self, served: Inside, prepared: Prepared, ended: Ended) -> None:
        """Keep what was read, in a thread."""
        if served.ready.control_path:
            self.concluding = threading.Thread(target=self._conclude_now, args=(served, prepared, ended), daemon=True)
            self.concluding.start()

    def _conclude_now(self, served: Inside, prepared: Prepared, ended: Ended) -> None:
        from robust_run.prefetch import window
        from robust_run.prefetch.record import keep, launch_id

        try:
            recording, start = window.close(served, prepared, ended)
            self._say(window.sentence(start))
            if prepared.plan.record:
                # Each node keeps what it read; together they count as one launch.
                launch = launch_id(self._spec.run_id, self._first_store) if self._spec.many is not None else ""
                keep(prepared.store, prepared.key, [recording], launch, self._group_rank)
            self._report(start)
        except RobustRunError as error:
            self._say(f"what the start read of {self._where} is not kept: {error}")
