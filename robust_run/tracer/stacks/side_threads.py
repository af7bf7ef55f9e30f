"""Threads beside the main one: whether any of them may do what the main thread waits for.

A timer, a callback, a server in a thread may send a message, release a lock, or end a wait by a signal, be it of
the program, a library, or Python itself. So every thread that runs Python counts, but for a few that are known to do one
thing only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

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
#: Packages whose own threads write down or send away what the program has told them; they never end a call or the process.
_TELLERS = ("tensorboard/", "tensorboardX/", "torch/utils/tensorboard/", "wandb/")
#: Threads of C++ that Python knows and that run none of it now, by the kernel's names: autograd's wait for the main thread.
_OF_AUTOGRAD = "pt_autograd_"


def none_may_act(sight: RankSight, besides: Collection[int] = (), unknown: int = 0) -> bool:
    """Whether no thread beside the main one runs Python that may act, in any sample.

    `besides`: threads, by the kernel's numbers, that are known to be unable to; `unknown`: so many whose number is not known.
    """
    return _none(sight, lambda stack: stack.tid in besides or _is_harmless(stack), unknown)


def none_may_end(sight: RankSight) -> bool:
    """Whether no thread beside the main one may end the process, or a call of the main one: by `abort`, `_exit`, a signal."""
    return _none(sight, lambda stack: _is_harmless(stack) or _only_tells(stack))


def _none(sight: RankSight, is_harmless: Callable[[ThreadStack], bool], unknown: int = 0) -> bool:
    process = next((one for one in sight.processes if one.is_rank), None)
    if process is None or not process.stacks or any(len(sample) >= THREADS for sample in process.stacks):
        return False  # of too many threads some were left out
    shown = {stack.tid for sample in process.stacks for stack in sample}
    if process.acting is None or not shown.issuperset(process.acting):
        return False  # a native thread, which Python does not know and no stack shows
    for sample in process.stacks:
        others = [stack for stack in sample if not stack.is_main and not is_harmless(stack)]
        if any(stack.tid for stack in others) or len(others) > unknown:
            return False
    return True


def _is_harmless(stack: ThreadStack) -> bool:
    """Whether a thread does one thing only. One without frames is in a function of C that may call Python in the end."""
    if not stack.frames:
        return stack.name.startswith(_OF_AUTOGRAD)
    if any(origin(frame) == "user" for frame in stack.frames):
        return False
    places = [(short_path(frame.file), frame.function) for frame in stack.frames]
    return places[0] == _IDLE or not _KNOWN.isdisjoint(places)


def _only_tells(stack: ThreadStack) -> bool:
    origins = {origin(frame) for frame in stack.frames}
    return "user" not in origins and any(short_path(frame.file).startswith(_TELLERS) for frame in stack.frames)
