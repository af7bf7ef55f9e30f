"""What `startup.json` in the run directory says, for status and metrics: how long attempts took to start, seconds by phase."""

from __future__ import annotations

import os

import msgspec

from robust_run.decoders import json_decoder
from robust_run.report.files import open_regular

#: A larger file is no startup.json; phases have few names, which become labels.
LARGEST_BYTES = 64 << 20
MOST_PHASES = 24


class _Phase(msgspec.Struct):
    phase: str
    longest_s: float


class _Attempt(msgspec.Struct):
    attempt: int
    stepped_ranks: int = 0
    total_s: float = 0.0
    phases: tuple[_Phase, ...] = ()


class _Startup(msgspec.Struct):
    attempts: tuple[_Attempt, ...] = ()


class StartupPhases:
    """Reads the file when it has changed."""

    def __init__(self, run_directory: str) -> None:
        self._path = os.path.join(run_directory, "startup.json") if run_directory else ""
        self._seen: tuple[int, int] | None = None
        self._found: tuple[_Attempt, ...] = ()

    def of_newest(self) -> dict[str, float]:
        """Return seconds by phase, of the node or rank that took longest; nothing where there is no such file."""
        found = self._read()
        if not found:
            return {}
        newest = max(found, key=lambda each: each.attempt)
        return {each.phase: each.longest_s for each in newest.phases[:MOST_PHASES] if each.phase.isidentifier()}

    def totals(self) -> dict[int, float]:
        """Return after how many seconds attempts had made their first step, as the terminal said (`AttemptStartup.total_s`)."""
        return {each.attempt: each.total_s for each in self._read() if each.stepped_ranks and 0 < each.total_s < 1e9}

    def _read(self) -> tuple[_Attempt, ...]:
        if not self._path:
            return ()
        try:
            status = os.stat(self._path)
            version = (status.st_mtime_ns, status.st_size)
            if version != self._seen and status.st_size <= LARGEST_BYTES:
                self._seen = version
                with open_regular(self._path) as file:
                    self._found = json_decoder(_Startup).decode(file.read(LARGEST_BYTES)).attempts
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._found = ()
        return self._found
