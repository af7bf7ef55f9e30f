"""How far a long transfer is: a bar with rate and time left on a terminal, a line now and then elsewhere.

On standard error: standard output is for results.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: Between two lines where there is no terminal.
LINE_S = 10.0


@contextmanager
def shown(what: str, total_bytes: int | None, stream: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Show progress while the block runs; yields what is to be told of bytes that are done, from any thread.

    `total_bytes`: None where it is not known.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        lines = Lines(what, total_bytes, stream)
        yield lines.advance
        lines.end()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield lambda count: progress.advance(task, count)


class Lines:
    """Progress as lines of text; none for what is quick. Safe to use from threads."""

    def __init__(
        self, what: str, total_bytes: int | None, stream: TextIO, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`total_bytes`: None where it is not known."""
        self._what, self._total, self._stream, self._now_s = what, total_bytes, stream, now_s
        self._lock = threading.Lock()
        self._done = 0
        self._began_s = self._said_s = now_s()
        self._has_said = False

    def advance(self, count: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self._done += count
            now_s = self._now_s()
            if now_s - self._said_s >= LINE_S and (self._total is None or self._done < self._total):
                self._said_s, self._has_said = now_s, True
                self._say(now_s)

    def end(self) -> None:
        """All is done; said if anything was."""
        if self._has_said:
            self._say(self._now_s())

    def _say(self, now_s: float) -> None:
        rate = self._done / max(now_s - self._began_s, 1e-9)
        if self._total is None:
            said = f"{size(self._done)}, {size(rate)}/s"
        else:
            left = f", {(self._total - self._done) / rate:.0f} s left" if rate and self._done < self._total else ""
            share = 100 * self._done / self._total if self._total else 100
            said = f"{share:.0f}% of {size(self._total)}, {size(rate)}/s{left}"
        self._stream.write(f"robust: {self._what}: {said}\n")
        self._stream.flush()


def size(count: float) -> str:
    """Return a number of bytes as people read it, in powers of ten."""
    for unit, value in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= value:
            return f"{count / value:.3g} {unit}"
    return f"{count:.0f} B"
