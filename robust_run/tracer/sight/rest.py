"""Whether a process is at rest: no thread of it runs, and none has run since it was looked at before.

What its threads did then they do still; and a process at rest is the only one whose threads may be interrupted (`fault_signal`).
All reads go below a folder `root` that looks like /proc.
"""

from __future__ import annotations

import os

from robust_run.tracer.sight.processes import small_file

#: A process with more threads is none that rests, as far as we know.
THREADS = 256
ASLEEP = "S"

Rest = frozenset[tuple[int, int, int]]
"""Of each thread: its id, for how long it has run so far (ns), and how often it was given a CPU."""


def at_rest(pid: int, root: str = "/proc") -> Rest | None:
    """Return how often the threads of a process have run so far; None if one of them runs or waits for a CPU, or if the kernel
    does not count it. The same answer twice: none of them has run in between.
    """
    folder = f"{root}/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return None
    if not 0 < len(threads) <= THREADS:
        return None
    found = set()
    for thread in threads:
        # Counts first: one that has run after they were read counts more at the next look.
        counts = small_file(f"{folder}/{thread}/schedstat").split()
        state = small_file(f"{folder}/{thread}/stat").rpartition(")")[2].split()[:1]
        if len(counts) != 3 or state != [ASLEEP] or not all(word.isdigit() for word in (thread, *counts)):
            return None
        found.add((int(thread), int(counts[0]), int(counts[2])))
    return frozenset(found)
