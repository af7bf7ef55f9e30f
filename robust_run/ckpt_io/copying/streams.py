"""Long stretches of bytes from front to back: read in parallel, a window at a time, the next while one is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource
from robust_run.ckpt_io.rules.types import UNIT_BYTES
from robust_run.ckpt_io.views.reader import read_view
from robust_run.ckpt_io.views.types import ViewSource, VirtualFile
from robust_run.store.engine import Hedge, transfer
from robust_run.store.jobs import ReadJob

WINDOW_BYTES = 64 << 20
Fill = Callable[[int, memoryview], None]


def windows(size_bytes: int, fill: Fill) -> Iterator[memoryview]:
    """Yield a stream window by window; `fill(offset, buffer)` reads one. A window is only good until the next is asked for."""
    if not size_bytes:
        return
    buffers = [
        memoryview(bytearray(min(WINDOW_BYTES, size_bytes))) for _ in range(2 if size_bytes > WINDOW_BYTES else 1)
    ]

    def filled(number: int) -> memoryview:
        at = number * WINDOW_BYTES
        window = buffers[number % 2][: min(WINDOW_BYTES, size_bytes - at)]
        fill(at, window)
        return window

    with ThreadPoolExecutor(1, thread_name_prefix="window") as reader:
        coming = reader.submit(filled, 0)
        for number in range(-(-size_bytes // WINDOW_BYTES)):
            window = coming.result()
            if (number + 1) * WINDOW_BYTES < size_bytes:
                coming = reader.submit(filled, number + 1)
            yield window


def of_view(source: ViewSource, file: VirtualFile) -> Iterator[memoryview]:
    """Yield a virtual file. Raises CheckpointError."""
    return windows(file.size_bytes, lambda offset, buffer: read_view(source, file, offset, buffer))


def of_plain(source: PlainSource, file: PlainFile) -> Iterator[memoryview]:
    """Yield a file as it is. Raises StoreError."""

    def fill(offset: int, buffer: memoryview) -> None:
        jobs = (
            ReadJob(source.store, file.path, offset + at, [buffer[at : at + UNIT_BYTES]])
            for at in range(0, len(buffer), UNIT_BYTES)
        )
        transfer(jobs, threads=source.store.threads, hedge=Hedge())

    return windows(file.size_bytes, fill)
