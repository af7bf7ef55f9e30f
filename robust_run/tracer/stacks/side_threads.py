"""Threads beside the main one: whether any of them may do what the main thread waits for.

A timer, a callback, a server in a thread may send a message, release a lock, or end a wait by a signal, be it of
the program, a library, or Python itself. So every thread that runs Python counts, but for a few that are known to do one
thing only.
"""

from __future__ import annotations

from robust_run.tracer.stacks.dumps import THREADS
from robust_run.tracer.stacks.normal import origin, short_path
from robust_run.tracer.types import RankSight, ThreadStack

#: File and function of threads that feed a queue, pin batches, or redraw a bar.
_KNOWN = frozenset(
    {
        ("multiprocessing/queues.py", "_feed"),
        ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
        ("tqdm/_monitor.py", "run"),
    }
)
#: A thread of a pool that has nothing to do: innermost.
_IDLE = ("concurrent/futures/thread.py", "_worker")


def none_may_act(sight: RankSight, besides: int = 0) -> bool:
    """Whether no thread beside the main one runs Python that may act, in any sample, but for so many that are known."""
    process = next((one for one in sight.processes if one.is_rank), None)
    if process is None or not process.stacks or any(len(sample) >= THREADS for sample in process.stacks):
        return False  # of too many threads some were left out
    return all(
        sum(not stack.is_main and bool(stack.frames) and not _is_harmless(stack) for stack in sample) <= besides
        for sample in process.stacks
    )


def _is_harmless(stack: ThreadStack) -> bool:
    if any(origin(frame) == "user" for frame in stack.frames):
        return False
    places = [(short_path(frame.file), frame.function) for frame in stack.frames]
    return places[0] == _IDLE or not _KNOWN.isdisjoint(places)
