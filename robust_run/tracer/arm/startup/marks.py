"""Notes on what a worker spends its start: imports, making the first process group, reading a checkpoint.

`sitecustomize` loads this file by its path. Until the first optimizer step, the main thread's time in what is watched is written
as spans into a small file that the launcher has made (`robust_run.tracer.files.marks` has its format and reads it). Spans never
lie within each other: what runs inside one belongs to it. After the first step nothing is written, and imports are as before.

No failure of ours reaches the program. Python's standard library only.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# The marks file, as robust_run.tracer.files.marks has it: a test keeps the two equal.
MAGIC = b"RBMARKS\n"
VERSION = 1
FILE_BYTES = 2048
MAGIC_CELL, VERSION_CELL, PID_CELL, ARMED_CELL, COUNT_CELL, OPEN_CELL, OPENED_CELL = range(7)
SPANS_CELL, SPAN_CELLS = 8, 3
MOST_SPANS = (FILE_BYTES // 8 - SPANS_CELL) // SPAN_CELLS
IMPORTS, INIT, LOAD_TORCH, LOAD_DCP, LOAD_SAFETENSORS, LOAD_OURS = range(1, 7)

#: Room that is kept for what is no import: programs may import here and there for a long time.
IMPORT_SPANS = MOST_SPANS - 32
#: Spans of one kind with less between them are one.
GAP_S = 0.02
#: Single imports that are shorter say nothing.
SHORTEST_IMPORT_S = 0.001

#: Where Python's import system is, for tracebacks and warnings: they leave out frames of files with this name.
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"

#: Functions that load a checkpoint, by module: name, kind, and the modules that have taken the name over.
LOADERS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "torch.serialization": (("load", LOAD_TORCH, "torch"),),
    "torch.distributed.checkpoint.state_dict_loader": (
        ("load", LOAD_DCP, "torch.distributed.checkpoint"),
        ("load_state_dict", LOAD_DCP, "torch.distributed.checkpoint"),
    ),
    "safetensors.torch": (("load_file", LOAD_SAFETENSORS, ""), ("load_model", LOAD_SAFETENSORS, "")),
}
MODULE_OF_GROUPS = "torch.distributed.distributed_c10d"


class MarksWriter:
    """The marks file of this process."""

    def __init__(self, path: str) -> None:
        """Raises OSError or ValueError if the file is not as it should be."""
        import mmap

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
            cells = memoryview(mmap.mmap(descriptor, FILE_BYTES))
        finally:
            os.close(descriptor)
        self.numbers, self.times = cells.cast("Q"), cells.cast("d")
        if bytes(cells[: len(MAGIC)]) != MAGIC or self.numbers[VERSION_CELL] != VERSION:
            raise ValueError(f"{path} is not a marks file of version {VERSION}")
        self.pid, self.thread = os.getpid(), get_ident()
        self.kind = 0
        self.began_s = 0.0
        self.stopped = False
        self.undo: Callable[[], None] = lambda: None
        self.times[ARMED_CELL] = monotonic()
        self.numbers[PID_CELL] = self.pid

    def begin(self, kind: int) -> bool:
        """Note that something begins; False if it is part of something else, or is no business of ours."""
        if self.kind or self.stopped or get_ident() != self.thread or os.getpid() != self.pid:
            return False
        self.kind = kind
        self.began_s = self.times[OPENED_CELL] = monotonic()
        self.numbers[OPEN_CELL] = kind
        return True

    def end(self) -> None:
        """Note that it has ended."""
        kind, self.kind = self.kind, 0
        if self.stopped or os.getpid() != self.pid:
            return
        numbers, times, began_s, now_s = self.numbers, self.times, self.began_s, monotonic()
        count = numbers[COUNT_CELL]
        last = SPANS_CELL + SPAN_CELLS * (count - 1)
        if count and numbers[last] == kind and (began_s - times[last + 2] < GAP_S or count == MOST_SPANS):
            times[last + 2] = now_s
        elif kind == IMPORTS and (now_s - began_s < SHORTEST_IMPORT_S or count >= IMPORT_SPANS):
            pass
        elif count < MOST_SPANS:
            at = last + SPAN_CELLS
            numbers[at], times[at + 1], times[at + 2] = kind, began_s, now_s
            numbers[COUNT_CELL] = count + 1
        numbers[OPEN_CELL] = 0

    def stop(self) -> None:
        """Note nothing from now on: the first step has been made."""
        self.stopped = True
        if os.getpid() == self.pid:
            self.numbers[OPEN_CELL] = 0
        self.undo()

    def watch_imports(self) -> None:
        """Note how long imports take that the program waits for."""
        system: Any = sys.modules["_frozen_importlib"]
        original, begin, end = system._find_and_load, self.begin, self.end

        def _find_and_load(*args: Any) -> Any:
            # Python calls this for every module that is not in `sys.modules` yet.
            if not begin(IMPORTS):
                return original(*args)
            try:
                return original(*args)
            finally:
                end()

        _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=IMPORT_SYSTEM)
        system._find_and_load = _find_and_load

        def undo() -> None:
            if system._find_and_load is _find_and_load:
                system._find_and_load = original

        self.undo = undo

    def join(self, awaited: dict[str, Callable[[ModuleType], None]]) -> None:
        """Add to what is done with modules when they have been executed."""
        ours: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(LOADERS, self.watch_loaders)
        ours[MODULE_OF_GROUPS] = self.watch_groups
        for name, then in ours.items():
            awaited[name] = one_after_another(awaited[name], then) if name in awaited else then

    def watch_loaders(self, module: ModuleType) -> None:
        """Note how long this module's functions that load checkpoints take."""
        for name, kind, also in LOADERS[module.__name__]:
            if hasattr(module, name):
                self.wrap(module, name, kind, [also])

    def watch_groups(self, module: ModuleType) -> None:
        """Note how long the first process group takes."""
        others = [name for name in list(sys.modules) if name.startswith("torch.distributed")]
        self.wrap(module, "init_process_group", INIT, others)

    def wrap(self, module: ModuleType, name: str, kind: int, others: list[str]) -> None:
        """Put a function that is timed in the place of one, also where others have taken it over."""
        import functools  # takes longer than all else here, and torch has imported it

        original = getattr(module, name)
        begin, end = self.begin, self.end

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not begin(LOAD_OURS if kind == LOAD_DCP and is_ours(args, kwargs) else kind):
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                end()

        for each in (module, *(sys.modules.get(other) for other in others)):
            if getattr(each, "__dict__", {}).get(name) is original:
                setattr(each, name, timed)


def one_after_another(*calls: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Return what makes these calls in turn."""

    def call_all(module: ModuleType) -> None:
        for call in calls:
            call(module)

    return call_all


def is_ours(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a checkpoint is read by robust_run's own reader."""
    readers = (*args[1:3], kwargs.get("storage_reader"))
    return any(type(reader).__module__.startswith("robust_run.") for reader in readers if reader is not None)
