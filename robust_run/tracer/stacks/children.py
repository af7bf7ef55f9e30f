"""What the children of a rank are for and where they are, as their stacks tell: DataLoader workers, pools, compile workers.

A child by fork keeps the frames of its parent under its own. What it does begins where multiprocessing starts it.
"""

from __future__ import annotations

from collections.abc import Collection

from robust_run.tracer.stacks.normal import (
    A_PROGRAM,
    A_TRACKER,
    long_place,
    main_thread,
    origin,
    short_path,
    telling_frames,
)
from robust_run.tracer.types import ProcessSight, RankSight, ThreadStack

RANK_ROLE = "rank"
LOADER_ROLE = "DataLoader worker"
POOL_ROLE = "Pool worker"

_COMPILE_WORKER = "torch/_inductor/compile_worker/"
#: `multiprocess` is the copy of multiprocessing that datasets uses.
_STARTS = frozenset({"multiprocessing/process.py", "multiprocess/process.py"})
_POOLS = frozenset(
    {
        ("multiprocessing/pool.py", "worker"),
        ("multiprocess/pool.py", "worker"),
        ("concurrent/futures/process.py", "_process_worker"),
    }
)
#: Stopped or ended: where it is, it will not get on from.
_STILL_STATES = frozenset("TtXZ")


def role(process: ProcessSight, stack: ThreadStack) -> str:
    """Say what a process is for: `rank`, `DataLoader worker`, `compile worker`, `Pool worker`, else its command."""
    if process.is_rank:
        return RANK_ROLE
    files = [frame.file for frame in stack.frames]
    if any(file.endswith("torch/utils/data/_utils/worker.py") for file in files):
        return LOADER_ROLE
    if any(_COMPILE_WORKER in file for file in files):
        return "compile worker"
    if any((short_path(frame.file), frame.function) in _POOLS for frame in own_part(stack).frames):
        return POOL_ROLE
    return process.command


def has_nothing_to_do(stack: ThreadStack) -> bool:
    """Whether a child sleeps in torch's own loop, or its tool's, rather than in something that the user's program called."""
    origins = [origin(frame) for frame in telling_frames(own_part(stack))]
    caller = next((one for one in origins if one != "standard"), "standard")
    return not origins or (origins[0] == "standard" and caller in ("standard", "torch"))


def own_part(stack: ThreadStack) -> ThreadStack:
    """Return a child's stack without the frames that its parent was in when it forked, where multiprocessing did that."""
    for number, frame in enumerate(stack.frames):
        if frame.function == "_bootstrap" and short_path(frame.file) in _STARTS:
            return ThreadStack(is_main=stack.is_main, name=stack.name, frames=stack.frames[: number + 1])
    return stack


def newest_stack(process: ProcessSight) -> ThreadStack | None:
    """Return the newest known stack of a process's main thread."""
    return next((one for one in map(main_thread, reversed(process.stacks)) if one is not None), None)


def children_of(sight: RankSight) -> tuple[ProcessSight, ...]:
    """Return the processes of a rank besides its own, without those that started it: a shell, a wrapper."""
    parents = {process.pid: process.parent for process in sight.processes}
    starters: set[int] = set()
    pid = next((process.parent for process in sight.processes if process.is_rank), 0)
    while pid in parents and pid not in starters:
        starters.add(pid)
        pid = parents[pid]
    return tuple(process for process in sight.processes if not process.is_rank and process.pid not in starters)


def long_place_of(child: ProcessSight, family: Collection[ProcessSight]) -> str:
    """Return the name of the place that takes long in which a child is at work; "" if it is in none.

    A child that waits for work in the loop of its tool is in none, nor is a service that accompanies the program. `family`:
    the processes among which those that the child started are looked for.
    """
    stack = newest_stack(child)
    if stack is None or child.state in _STILL_STATES or has_nothing_to_do(stack):
        return ""
    own = own_part(stack)
    # Idle compile workers have no other frames than these.
    frames = tuple(frame for frame in own.frames if _COMPILE_WORKER not in frame.file)
    name = long_place(ThreadStack(is_main=own.is_main, name=own.name, frames=frames))
    if name == A_TRACKER or (name == A_PROGRAM and not any(map(lives, below(child.pid, family)))):
        return ""
    return name


def lives(process: ProcessSight) -> bool:
    """Whether a process does anything at all: a slow transfer uses a hundredth of a core, and hardly any I/O."""
    return process.cpu > 0.0 or process.io_bytes > 0


def below(pid: int, family: Collection[ProcessSight]) -> list[ProcessSight]:
    """Return the descendants of a process."""
    found: dict[int, ProcessSight] = {}
    generation = {pid}
    while generation:
        born = [one for one in family if one.parent in generation and one.pid not in found and one.pid != pid]
        found.update((one.pid, one) for one in born)
        generation = {one.pid for one in born}
    return list(found.values())
