"""The host's time in place of the GPU's, for programs that compute on the CPU. Python's standard library only."""

from __future__ import annotations

from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


timing = load("phase_timer")


class HostClock:
    """Takes the host's time for the GPU's: for programs that compute on the CPU."""

    code = timing.HOST

    def here(self) -> HostClock:
        """Return where marks are made."""
        return self

    def move(self) -> None:
        """There is one place only."""

    def is_capturing(self) -> bool:
        """Whether a graph is captured, so that nothing may be asked."""
        return False

    def is_home(self, _: Any) -> bool:
        """Whether a stream is where marks are made."""
        return False

    def event(self) -> HostTime:
        """Return what a time can be noted in."""
        return HostTime()


class HostTime:
    """An event of the host's clock."""

    __slots__ = ("at_ns",)

    def record(self, _: Any) -> None:
        """Note the time."""
        self.at_ns = perf_counter_ns()

    def query(self) -> bool:
        """Whether it is known."""
        return True

    def elapsed_time(self, end: HostTime) -> float:
        """Return the milliseconds from this one to another."""
        return (end.at_ns - self.at_ns) / 1e6
