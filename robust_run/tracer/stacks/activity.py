"""Whether a rank that others wait for is at work, or only looks alive: from what its processes used while looked at.

A hang and a long checkpoint look alike to the ranks that wait. They differ in what the processes do: bytes flow, functions
change, children compute. The order of the questions is: does I/O flow, is it in a place that is known to take long, do its stacks
move, do its children work, does it or a child at least use CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from robust_run.tracer.stacks.children import (
    LOADER_ROLE,
    POOL_ROLE,
    has_nothing_to_do,
    lives,
    long_place_of,
    newest_stack,
    own_part,
    role,
)
from robust_run.tracer.stacks.normal import (
    A_PROGRAM,
    is_plumbing,
    long_place,
    main_stacks,
    main_thread,
    origin,
    place,
    short_path,
)
from robust_run.tracer.stacks.relevance import counted, heard
from robust_run.tracer.types import Frame, ProcessSight, RankSight, ThreadStack

#: Length of a look, to which `ProcessSight.io_bytes` relates.
LOOK_S = 0.5
#: Bytes per second below which I/O proves nothing: a logger's heartbeat, metrics.
FLOWING_BYTES_PER_S = 64 * 1024
#: Share of one core below which a process does nothing.
BUSY_CPU = 0.05
#: Part of a look: a process that is kept waiting for a CPU for so long is no process that sleeps. One that only wakes now and
#: then to look at something is kept waiting for less, also on a busy machine.
STARVED = 0.25
#: So deep under the user's function that changing functions mean a computation, not a loop that polls something.
DEEP_LIBRARY = 3

_SLEEPING_FILES = frozenset({"threading.py", "queue.py", "selectors.py", "socket.py", "multiprocessing/connection.py"})
_Path = tuple[tuple[str, str], ...]


class Activity(msgspec.Struct, frozen=True):
    """What a rank is doing."""

    kind: Literal["idle", "spinning", "working"]
    """spinning: it or a child uses CPU, but in one and the same function."""
    reason: str
    """A clause for people, without the rank: `writing 12 MB/s in torch.save`, `asleep in data.py:88 get`."""


def activity_of(sight: RankSight) -> Activity:
    """Judge a rank by what its whole process tree did during the look."""
    stacks = main_stacks(sight)
    newest = stacks[-1] if stacks else None
    known_long = long_place(newest) if newest is not None else ""
    where = known_long or (place(newest) if newest is not None else "")
    rank_process = next((process for process in sight.processes if process.is_rank), None)
    if rank_process is None or rank_process.state in ("X", "Z"):
        return Activity("idle", "its process is gone")
    if rank_process.state == "t":
        return Activity("working", f"in a debugger{_in(where)}")
    if rank_process.frozen_by:
        return Activity("idle", f"frozen by its cgroup{_in(where)}")
    if rank_process.state == "T":
        return Activity("idle", f"stopped{_in(where)}")
    told = heard(sight.wake, known_long)
    if told is not None:
        return Activity("working" if told.comes else "idle", f"{told.words}{_in(where)}")
    rank_process, children = counted(sight, rank_process)
    bytes_per_s = sum(process.io_bytes for process in (rank_process, *children)) / LOOK_S
    if bytes_per_s >= FLOWING_BYTES_PER_S:
        return Activity("working", f"{_verb(known_long)} {_rate(bytes_per_s)}{_in(where)}")
    if known_long and (known_long != A_PROGRAM or any(map(lives, children))):
        return Activity("working", f"in {known_long}")
    if rank_process.cpu >= BUSY_CPU and _moves(rank_process):
        return Activity("working", f"uses {_share(rank_process.cpu)} and moves{_in(where)}")
    work = _work_of(children)
    if work:
        return Activity("working", work)
    return _without_work(sight, rank_process, children, where)


def _without_work(
    sight: RankSight, rank_process: ProcessSight, children: Sequence[ProcessSight], where: str
) -> Activity:
    if rank_process.gpu_wait:
        # The GPU may be computing, whether CUDA spins meanwhile or sleeps.
        return Activity("spinning", f"waits for its GPU in {rank_process.gpu_wait}{_in(where)}")
    spinner = max((rank_process, *children), key=lambda one: one.cpu)
    if spinner.cpu >= BUSY_CPU:
        return Activity("spinning", _spins(spinner, where))
    kept = next(filter(is_kept_waiting, (rank_process, *children)), None)
    if kept is not None:
        whose = "" if kept.is_rank else f"its child {kept.pid} ({kept.command}) "
        return Activity("working", f"{whose}waits for a CPU, {kept.starved * 100:.0f} % of the time{_in(where)}")
    loader = stuck_loader(sight)
    return Activity("idle", _asleep(rank_process, where) + (f"; {loader}" if loader else ""))


def is_kept_waiting(process: ProcessSight) -> bool:
    """Whether a process would run if it had a CPU: then that it uses none says nothing."""
    return process.state == "R" or process.starved >= STARVED


def _work_of(children: Sequence[ProcessSight]) -> str:
    """Say which child works, "" if none does."""
    for child in children:
        known_long = long_place_of(child, children)
        if known_long:
            return f"its child {child.pid} ({child.command}) is in {known_long}"
    busy = max(filter(_works, children), key=lambda one: one.cpu, default=None)
    return f"its child {busy.pid} ({busy.command}) uses {_share(busy.cpu)}" if busy is not None else ""


def _spins(process: ProcessSight, where: str) -> str:
    """Say which process uses CPU in one function: the rank itself, or a child, which is named."""
    if process.is_rank:
        return f"uses {_share(process.cpu)}{_in(where)}"
    stack = newest_stack(process)
    called = role(process, stack) if stack is not None else ""
    who = (
        f"{called} {process.pid}" if called in (LOADER_ROLE, POOL_ROLE) else f"child {process.pid} ({process.command})"
    )
    return f"its {who} uses {_share(process.cpu)}{_in(place(own_part(stack)) if stack is not None else '')}"


def _works(process: ProcessSight) -> bool:
    """Whether a child computes: it uses CPU, and not in one and the same Python function."""
    if process.cpu < BUSY_CPU:
        return False
    known = [stack for stack in map(main_thread, process.stacks) if stack is not None]
    return len(known) < 2 or any(map(long_place, known)) or _moves(process)


def _moves(process: ProcessSight) -> bool:
    """Whether the main thread goes through different functions; where it sleeps meanwhile, whether any other thread does."""
    mains = [stack for stack in map(main_thread, process.stacks) if stack is not None]
    if _thread_moves(mains):
        return True
    if not mains or short_path(mains[-1].frames[0].file) not in _SLEEPING_FILES:
        return False
    threads: dict[tuple[str, str], list[ThreadStack]] = {}
    for sample in process.stacks:
        for stack in sample:
            path = _user_path(stack)
            if not stack.is_main and path:
                threads.setdefault(path[0], []).append(stack)
    return any(map(_thread_moves, threads.values()))


def _thread_moves(stacks: list[ThreadStack]) -> bool:
    """Whether samples of one thread differ beyond one function and what it calls.

    A loop `while True: x = f(x)` is seen in itself and in `f`: one path of calls is the beginning of the other. A computation
    is seen in different functions side by side, or in ever different functions deep in a library.
    """
    paths = {_user_path(stack) for stack in stacks}
    longest = max(paths, key=len, default=())
    if any(path != longest[: len(path)] for path in paths):
        return True
    callees = [_callees(stack) for stack in stacks]
    return max(map(len, callees), default=0) >= DEEP_LIBRARY and len(set(callees)) > 1


def _user_path(stack: ThreadStack) -> _Path:
    """Return the user's functions of a stack, outermost first."""
    return tuple(_name(frame) for frame in reversed(stack.frames) if origin(frame) == "user" and not is_plumbing(frame))


def _callees(stack: ThreadStack) -> _Path:
    """Return the library functions that the innermost function of the user is in, innermost first."""
    found: list[tuple[str, str]] = []
    for frame in stack.frames:
        if origin(frame) == "user":
            break
        if not is_plumbing(frame):
            found.append(_name(frame))
    return tuple(found)


def _name(frame: Frame) -> tuple[str, str]:
    return short_path(frame.file), frame.function


def _asleep(process: ProcessSight, where: str) -> str:
    """Say how it sleeps."""
    if process.state == "D":
        within = f" ({process.waits_in})" if process.waits_in else ""
        return f"blocked in the kernel{within}{_in(where)}"
    return f"asleep{_in(where)}"


def stuck_loader(sight: RankSight) -> str:
    """Say where a DataLoader worker is that the rank may be waiting for; "" if it waits for none."""
    newest = next(reversed(main_stacks(sight)), None)
    if newest is None or not any(frame.file.endswith("torch/utils/data/dataloader.py") for frame in newest.frames):
        return ""
    for process in sight.processes:
        stack = newest_stack(process)
        if stack is None or role(process, stack) != LOADER_ROLE:
            continue
        stopped = "frozen by a cgroup " if process.frozen_by else "stopped " if process.state == "T" else ""
        if stopped or not has_nothing_to_do(stack):
            return f"its {LOADER_ROLE} {process.pid} is {stopped}in {place(stack)}"
    return ""


def _in(where: str) -> str:
    return f" in {where}" if where else ""


def _verb(known_long: str) -> str:
    """Say what I/O is; its direction is only known where the place tells it."""
    if known_long == "torch.save":
        return "writing"
    return "reading" if known_long == "torch.load" else "reading and writing"


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e6:
        return f"{bytes_per_s / 1e6:.0f} MB/s"
    return f"{bytes_per_s / 1e3:.0f} kB/s"


def _share(cpu: float) -> str:
    """Return CPU use for people."""
    return f"{cpu * 100:.0f} % of a core" if cpu < 1.5 else f"{cpu:.1f} cores"
