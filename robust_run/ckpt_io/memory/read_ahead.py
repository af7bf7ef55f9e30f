"""Maps the pages of a part while its digest is taken, which takes about as long: a load waits for one of them, not for both."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Protocol

POPULATE_READ = 22
"""MADV_POPULATE_READ (Linux 5.14): without it pages are mapped as they are read."""
STEP_BYTES = 8 << 20
"""The kernel takes a millisecond for it, in which no other thread of this process runs Python."""


class Pages(Protocol):
    """A mapping."""

    def madvise(self, option: int, start: int, length: int, /) -> None:
        """Advise the kernel. Raises OSError."""
        ...


def read_ahead(memory: Pages, size_bytes: int) -> threading.Thread | None:
    """Map the pages of a mapping in the background, from its beginning; None: it is too small for that, or no thread can be had.

    Nothing needs it: what goes wrong leaves pages to be mapped as they are read.
    """
    if size_bytes <= STEP_BYTES:
        return None
    thread = threading.Thread(target=populate, args=(memory, size_bytes), daemon=True)
    with suppress(RuntimeError):  # no more threads here
        thread.start()
        return thread
    return None


def populate(memory: Pages, size_bytes: int) -> None:
    """Map the pages of a mapping."""
    with suppress(OSError, ValueError):  # an older kernel; a mapping that was closed
        for at in range(0, size_bytes, STEP_BYTES):
            memory.madvise(POPULATE_READ, at, min(STEP_BYTES, size_bytes - at))
