"""The mark that an agent keeps on its node's disk of the run that it has a part in; see `records.rendezvous_marks`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_identity import identity_of
from robust_run.launcher.records.rendezvous_marks import RendezvousMark, marks_folder, remove_mark, write_mark


class OwnMark:
    """Written by threads, since a disk may take long; what is noted last is what stays."""

    def __init__(self, spec: JobSpec, folder: str, agent: str, say: Callable[[str], None]) -> None:
        """`folder`: where marks are; empty: none are kept."""
        self._folder, self._say = folder, say
        self._wanted = self._written = RendezvousMark(
            key=identity_of(spec).key, agent=agent, run_id="", log_dir=spec.log_dir or ""
        )
        self._is_over = self._has_failed = False
        self._writing = threading.Lock()

    def note(self, run_id: str, addresses: tuple[str, ...], then: Callable[[], None] = lambda: None) -> None:
        """Have it written that this node has a part in a run, and at which HOST:PORT its controller may be; then do more."""
        self._wanted = msgspec.structs.replace(self._wanted, run_id=run_id, addresses=addresses)
        if self._folder and self._wanted != self._written:
            threading.Thread(target=self._write, args=(then,), name="rendezvous mark", daemon=True).start()

    def _write(self, then: Callable[[], None]) -> None:
        with self._writing:
            mark = self._wanted
            if self._is_over or mark == self._written:
                return
            try:
                write_mark(self._folder, mark)
                self._written = mark
            except PlatformError as error:
                if not self._has_failed:
                    self._has_failed = True
                    self._say(str(error))
            else:
                then()

    def remove(self) -> None:
        """Remove it: the run is over."""
        self._is_over = True
        with self._writing:
            if self._folder:
                remove_mark(self._folder, self._written)


def folder_of_marks(spec: JobSpec, env: Mapping[str, str], host: str) -> str:
    """Return where this node keeps marks; empty: nowhere, since a scheduler knows what it has started."""
    return marks_folder(env, host) if spec.slurm is None else ""
