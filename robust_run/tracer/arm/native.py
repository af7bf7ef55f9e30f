"""The recorder whose calls and waits are written in C, where that was built: `robust_run/tracer/native/recorder.c`.

`sitecustomize` loads this file by its path. What is seen for the first time is handled here as in the recorder in Python, whose
classes these extend; what comes again is not. Nothing is compiled here: the launcher has had that done, and tried.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


MODULE = load("place").MODULE
calls, hooks, limits, recorder, table = (load(each) for each in ("calls", "hooks", "limits", "recorder", "table"))
#: What C finds among the arguments by itself, as `recorder.c` numbers it.
SHAPES = {
    calls.moves_first: 1,
    calls.moves_second: 2,
    calls.roots_first: 3,
    calls.gathers: 4,
    calls.scatters: 5,
    calls.exchanges_lists: 6,
    calls.exchanges: 7,
    calls.meets: 8,
    calls.sends: 9,
}


def extension(path: str) -> Any:
    """Return the module in C, which is in no path and not in `sys.modules`. Raises ImportError."""
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import ExtensionFileLoader

    loader = ExtensionFileLoader(MODULE, path)
    module = loader.create_module(ModuleSpec(MODULE, loader, origin=path))
    loader.exec_module(module)
    return module


class NativeRing(recorder.Ring):  # type: ignore[misc, name-defined]
    """The same file, and one counter and one list of waits for both halves."""

    core: Any = None

    def __init__(self, path: str, give_up: Callable[[Exception], None], module: Any) -> None:
        super().__init__(path, give_up)
        self.core = module.Core(
            self.octets, self.main_thread, self.stop, self.threads, self.table.kinds, self.table.sites, table.GroupEntry
        )
        self.table.forget = self.core.forget
        for name in ("next_index", "set_state", "begin_wait", "end_wait"):
            setattr(self, name, getattr(self.core, name))

    def leave(self) -> None:
        """Record nothing in this process."""
        super().leave()
        if (
            self.core is not None
        ):  # else it could not be made, and the recorder in Python has taken over; a fork still comes here
            self.core.recording = False

    def claim(self) -> bool:
        """Begin to record, unless another process of this worker has."""
        self.core.recording = super().claim()
        return bool(self.core.recording)


class NativeHooks(hooks.Hooks):  # type: ignore[misc, name-defined]
    """The same wrappers; those of calls and of their works are in C."""

    def __init__(self, ring: Any, distributed: Any, library: Any, served: Callable[[], None]) -> None:
        super().__init__(ring, distributed, library, served)
        note_wait = limits.Notes(self).note_wait
        self.core = ring.core
        self.core.join(
            self.known, self.links, self.gathered, self.dtype_codes, self.begin_for_c, self.issued, note_wait
        )  # fmt: skip

    def begin_for_c(self, *args: Any) -> int:
        """Do what `begin` does, with a frame of ours above it, as a wrapper in Python would be: so many frames are looked at."""
        return int(self.begin(*args))

    def call(self, original: Any, op: int, describe: Callable[[Any], tuple[int, Any, int]]) -> Any:
        """Wrap a method of ProcessGroup that returns a Work."""
        is_p2p = self.first_p2p <= op <= self.last_p2p
        return functools.wraps(original)(self.core.call(original, op, describe, SHAPES.get(describe, 0), is_p2p))

    def wait(self, original: Any) -> Any:
        """Wrap Work.wait, with a frame of ours: by it a stack shows that its thread waits for peers (`stacks/normal.py`)."""
        recorded = self.core.wait(original)

        @functools.wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            return recorded(*args, **kwargs)

        return wait

    def is_completed(self, original: Any) -> Any:
        """Wrap Work.is_completed."""
        return functools.wraps(original)(self.core.poll(original))
