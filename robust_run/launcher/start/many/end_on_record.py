"""End of a job in its journal, for a node that lost its controller and reads the same run directory: it need not wait for nobody.

How it knows: the newest word of the journal on the job is its end. What looks the same: a run that is gone on with after its end
(a requeue); then its controller has written since, and the end is not the newest word. A directory that is not shared has no
journal on this node, and nothing is known.
"""

from __future__ import annotations

import threading

import msgspec

from robust_run.decoders import json_decoder
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted
from robust_run.launcher.records.journal import JournalEntry

TAIL_BYTES = 256 << 10


def end_in(tail: bytes) -> Finish | None:
    """Return how the job ended by the last bytes of its journal; None: it goes on, or they do not say. Pure."""
    newest = 0
    finish: Finish | None = None
    for line in tail.split(b"\n")[1:-1]:  # the first may be cut, the last half written
        if not any(mark in line for mark in (b'"finish"', b'"controller_resumed"', b'"job_started"')):
            continue
        try:
            entry = json_decoder(JournalEntry).decode(line)
        except msgspec.MsgspecError:
            continue
        if entry.term < newest:
            continue  # by a controller that did not know that it was followed
        newest = entry.term
        if isinstance(entry.action, Finish):
            finish = entry.action
        elif isinstance(entry.event, (ControllerResumed, JobStarted)):
            finish = None
    return finish


def last_word(finish: Finish) -> str:
    """Return how the job ended, for the nodes that do not host the controller."""
    if finish.outcome == "done":
        return "the job is done"
    what = "the job failed" if finish.outcome == "failed" else "the job ended"
    return f"{what}: {'; '.join(filter(None, (finish.sentence, finish.reason)))}"


class EndOnRecord:
    """Looks at the journal in a thread of its own: the file system may hang, and nothing waits for it."""

    def __init__(self, path: str) -> None:
        """`path`: of the journal."""
        self._path = path
        self._looking: threading.Thread | None = None
        self._found: Finish | None = None

    def look(self) -> Finish | None:
        """Return what the last look has found, and look again. Never blocks."""
        if self._found is None and (self._looking is None or not self._looking.is_alive()):
            self._looking = threading.Thread(target=self._look, name="end of the job", daemon=True)
            self._looking.start()
        return self._found

    def _look(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(max(file.seek(0, 2) - TAIL_BYTES, 0))
                self._found = end_in(b"\n" + file.read(TAIL_BYTES))
        except OSError:
            return
