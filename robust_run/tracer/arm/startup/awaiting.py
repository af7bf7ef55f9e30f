"""Waiting for modules that a worker's program imports: what is done before they are executed, and after it.

`sitecustomize` loads this file by its path. Asking is not importing: `importlib.util.find_spec("torch")`, by which frameworks see
whether it is installed, leaves a module awaited. No failure of ours reaches the program. Python's standard library only.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
"""Where Python's import system is: tracebacks leave out frames of files with this name."""


class WaitForModules:
    """A finder that finds nothing: it lets us do something with modules as they are executed."""

    def __init__(
        self,
        after: dict[str, Callable[[ModuleType], None]],
        around: dict[str, Callable[[], Callable[[], None]]],
        give_up: Callable[[Exception], None],
    ) -> None:
        """`after`: called with the executed module. `around`: called before; returns what is called after, even a failure."""
        self.after, self.around, self.give_up = after, around, give_up

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return None, or for an awaited module what the other finders say, with its loader prepared."""
        if name not in self.after and name not in self.around:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec and finder is not self else None
            if spec is not None:
                try:
                    self.prepare(spec.loader, name)
                except Exception as error:
                    self.give_up(error)
                return spec
        return None

    def prepare(self, loader: Any, name: str) -> None:
        """Replace `exec_module` of this one loader object until it has run: the module keeps its true loader."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:
                return execute(module)  # type: ignore[no-any-return]
            loader.__dict__.pop("exec_module", None)
            then, end = self.begin(name)
            try:
                execute(module)
            finally:
                self.guard(end)
            self.guard(then, module)
            return None

        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM)
        loader.exec_module = exec_module

    def begin(self, name: str) -> tuple[Any, Any]:
        """Await a module no longer: it is executed now. Return what is called afterwards."""
        then, begin = self.after.pop(name, None), self.around.pop(name, None)
        if not self.after and not self.around and self in sys.meta_path:
            sys.meta_path.remove(self)
        return then, self.guard(begin)

    def guard(self, call: Any, *args: Any) -> Any:
        """Return what a call of ours returns; None if it fails, or is none."""
        try:
            return call(*args) if call else None
        except Exception as error:
            return self.give_up(error)
