"""Which files that were written get their name, and what is said of those that do not."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.memory_dir.names import Names
from robust_run.ckpt_io.memory_dir.writing import WrittenFile, closed_wrong


class Committing:
    """For one folder. `say`: a line for people."""

    def __init__(self, layers: Names, say: Callable[[str], None]) -> None:
        self._layers, self._say = layers, say

    def last_closed(self, written: WrittenFile) -> None:
        """Its last descriptor is closed. Raises OSError."""
        is_absent = self._layers.kind_of(written.name) == "gone"
        verdict = written.authors.released(has_bytes=written.has_bytes, end=written.end, is_new=is_absent)
        if verdict == "commit":
            self.commit(written)
        elif verdict == "keep aside":
            self._say(
                f"{written.name}: not saved: whether it was closed cannot be seen, and its format does not show its end"
            )

    def commit(self, written: WrittenFile) -> None:
        """Have its name stand for it. Raises OSError."""
        with written.lock:
            if written.failure is not None:
                raise OSError(written.failure.errno, written.failure.strerror)
            if written.is_committed or not written.name:
                return
            if not written.data.size_bytes and written.is_new and self._has_bytes(written.name):
                self._say(
                    f"{written.name}: not saved: it was closed and nothing was written to it. What was there stays"
                )
                written.give_up(closed_wrong("nothing was written to it"))
                return
            if missing := written.what_is_missing():
                self._say(f"{written.name}: not saved: {missing}. What the name stood for before stays as it was")
                written.give_up(closed_wrong(missing))
                raise closed_wrong(missing)
            self._layers.commit(written.name, written.data, written.mode)
            written.is_committed, written.is_new = True, False

    def _has_bytes(self, name: str) -> bool:
        try:
            found = self._layers.find(name)
        except FileNotFoundError:
            return False
        if isinstance(found, Kept):
            return found.data is not None and found.data.size_bytes > 0
        return found.st_size > 0

    def give_up(self, written: WrittenFile) -> None:
        """Its author is gone, or another one was."""
        fate = written.authors.fate
        if written.failure is None and not written.is_committed and written.name:
            self._say(
                f"{written.name}: not saved: {fate} after {written.data.size_bytes} bytes. What the name stood for before stays "
                "as it was"
            )
        written.give_up(closed_wrong(f"{fate} while it was writing"))
