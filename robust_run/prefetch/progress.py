"""How far a command is: a bar on a terminal, a line now and then elsewhere. On standard error: standard output is for results."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_LINE_EVERY_S = 10.0


@contextmanager
def shown(what: str, total_bytes: int | None, stream: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Show progress while the block runs; yields what is to be told of bytes that are done, from any thread."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(what, total_bytes, stream).advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Lines of text, where there is no terminal. A short work says nothing."""

    def __init__(self, what: str, total_bytes: int | None, stream: TextIO) -> None:
        self._what, self._total, self._stream = what, total_bytes, stream
        self._lock = threading.Lock()
        self._done = 0
        self._said_s = time.monotonic()

    def advance(self, count: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self._done += count
            if time.monotonic() - self._said_s < _LINE_EVERY_S:
                return
            self._said_s = time.monotonic()
            of = f" of {size(self._total)}" if self._total else ""
            self._stream.write(f"robust: {self._what}: {size(self._done)}{of}\n")
            self._stream.flush()


def size(count: float) -> str:
    """Return a number of bytes as people read it, in powers of ten."""
    for unit, value in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= value:
            return f"{count / value:.3g} {unit}"
    return f"{count:.0f} B"
