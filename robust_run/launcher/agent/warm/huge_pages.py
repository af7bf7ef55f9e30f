"""Memory of a warm process in huge pages: a fork copies some hundred entries of page tables then, not tens of thousands.

What torch's import makes, 220 MB, costs a fork and the end of what was forked 10 ms; in huge pages it costs 3 ms. A page that
is written afterwards is copied alone, as ever. Putting it there takes half a second of CPU, once: for a process that forks often.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

MADV_COLLAPSE = 25
HUGE_BYTES = 2 << 20
FULL = 0.75
"""A mapping with less of its pages in memory is left alone: huge pages would fill it."""


def full_mappings(smaps: str) -> Iterator[range]:
    """Return the addresses of huge pages, in steps of one, in private memory that is written to and nearly all there. Pure.

    `smaps`: what /proc/PID/smaps shows.
    """
    start = end = 0
    for line in smaps.splitlines():
        first, *words = line.split()
        if not first.endswith(":"):
            start, end = (int(address, 16) for address in first.split("-"))
            if words[0] != "rw-p" or words[4:] not in ([], ["[heap]"]):
                end = start
        elif first == "Anonymous:" and int(words[0]) << 10 >= FULL * (end - start) > 0:
            yield range(-(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)


def collapse() -> Iterator[int]:
    """Put this process's memory into huge pages, some milliseconds of it at each step; give the bytes so far.

    Ends early where the kernel does not (before Linux 6.1), or has no memory for it. Nothing is open between two steps: a job may
    be forked there.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    done_bytes = 0
    for addresses in full_mappings(smaps):
        for address in addresses:
            if madvise(address, HUGE_BYTES, MADV_COLLAPSE):
                return
            done_bytes += HUGE_BYTES
            yield done_bytes
