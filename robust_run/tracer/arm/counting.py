"""Counts a worker's steps, and looks for NaN after each of the first steps of code that has yet to prove itself.

`sitecustomize` loads this file by its path when torch.optim is imported, and puts `load` and `give_up` here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one."""
        ...

    def give_up(reason: Exception, what: str = ...) -> None:
        """Say once that something is not done, and why, on one line."""
        ...


# The steps file, as robust_run.tracer.files.steps has it: a test keeps the two equal.
MAGIC = b"RBSTEPS\n"
VERSION = 1
FILE_BYTES = 72
MAGIC_CELL, VERSION_CELL, PID_CELL, STEPS_CELL, FIRST_CELL, LAST_CELL, NOT_FINITE_CELL, RAISED_CELL, ENDED_CELL = range(
    9
)


def open_cells(path: str) -> tuple[memoryview[int], memoryview[float]]:
    """Map the steps file, and return its cells as whole numbers and as floating-point numbers."""
    import mmap

    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size < FILE_BYTES:
            raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
        cells = memoryview(mmap.mmap(descriptor, FILE_BYTES))
    finally:
        os.close(descriptor)
    numbers = cells.cast("Q")
    if bytes(cells[: len(MAGIC)]) != MAGIC or numbers[VERSION_CELL] != VERSION:
        raise ValueError(f"{path} is not a steps file of version {VERSION}")
    return numbers, cells.cast("d")


def list_modules(path: str, began: tuple[Sequence[str], Mapping[str, str]] | None = None) -> None:
    """Write the names of what is imported by now beside the steps file, if the launcher has put an empty list there.

    In the order of their import, a line each: what the warm process should import before the next attempt. Without those of
    torch, if the program itself has set variables that they read: before the program runs, they would read other values. Of
    all others those that `early_imports` keeps. `began`: `sys.path` and environment before the program.
    """
    descriptor = None
    try:
        descriptor = os.open(f"{path}.modules", os.O_WRONLY | os.O_CLOEXEC)
        has_torch = not load("startup/torch_settings").are_the_programs()
        others = set(load("startup/early_imports").may_be_early(sys.modules, sys.path, began)) if began else set()
        names = [name for name in sys.modules if (has_torch if name.partition(".")[0] == "torch" else name in others)]
        os.write(descriptor, "\n".join(names).encode("utf-8", errors="replace") + b"\n.\n")
    except OSError:
        return  # not asked for
    finally:
        if descriptor is not None:
            os.close(descriptor)


def watch_numbers(numbers: memoryview[int], torch: Any, steps: int) -> Callable[[Any], bool]:
    """Return what looks for NaN after each of the first steps; it says whether to go on looking."""
    left = steps

    def look(optimizer: Any) -> bool:
        nonlocal left
        left -= 1
        try:
            if is_finite(optimizer, torch):
                return left > 0
            numbers[NOT_FINITE_CELL] = max(numbers[STEPS_CELL], 1)
        except Exception as error:
            give_up(error, "looking for NaN")
        return False

    return look


def counter(
    numbers: memoryview[int],
    times: memoryview[float],
    torch: Any,
    path: str,
    probation: int = 0,
    on_first_step: Sequence[Callable[[], None]] = (),
    on_step: Sequence[Callable[[], None]] = (),
    began: tuple[Sequence[str], Mapping[str, str]] | None = None,
) -> Callable[..., None]:
    """Return the hook. It runs after every step of every optimizer, so it costs well below a microsecond.

    `began`: `sys.path` and environment before the program.
    """
    from time import monotonic

    getpid = os.getpid
    armed_pid = getpid()
    counting = True
    look = watch_numbers(numbers, torch, probation) if probation else None

    def start() -> bool:
        # The first process to make a step owns the file: one that only imports torch does not keep others from it.
        if numbers[PID_CELL] == 0:
            numbers[PID_CELL] = armed_pid
            times[FIRST_CELL] = monotonic()
        return numbers[PID_CELL] == armed_pid

    def count_step(optimizer: Any = None, *_: object) -> None:
        nonlocal counting, look
        # While torch.compile traces, this is True: the hook then adds nothing to the graph and does not break it.
        if torch.compiler.is_dynamo_compiling():
            return
        try:
            if counting and getpid() == armed_pid:
                if numbers[STEPS_CELL] == 0:
                    counting = start()
                    if not counting:
                        return
                    list_modules(path, began)
                    for tell in on_first_step:
                        tell()
                times[LAST_CELL] = monotonic()
                numbers[STEPS_CELL] += 1
                for tell in on_step:
                    tell()
                if look is not None and not look(optimizer):
                    look = None
        except Exception as error:
            counting = False
            give_up(error)

    return count_step


def is_finite(optimizer: Any, torch: Any) -> bool:
    """Whether all parameters of an optimizer are finite numbers."""
    verdict = None
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if not own.is_floating_point() or own.numel() == 0 or own.is_meta:
                    continue
                fine = torch.isfinite(own.detach()).all()
                if verdict is not None and verdict.device != fine.device:
                    if not bool(verdict):
                        return False
                    verdict = None
                verdict = fine if verdict is None else torch.logical_and(verdict, fine)
    return verdict is None or bool(verdict)
