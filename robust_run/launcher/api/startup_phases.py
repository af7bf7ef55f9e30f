"""Start-up phases of the newest attempt, from `startup.json` in the run directory, for metrics: seconds by phase."""

from __future__ import annotations

import os

import msgspec

#: A larger file is no startup.json; phases have few names, which become labels.
LARGEST_BYTES = 64 << 20
MOST_PHASES = 24


class _Phase(msgspec.Struct):
    phase: str
    longest_s: float


class _Attempt(msgspec.Struct):
    attempt: int
    phases: tuple[_Phase, ...] = ()


class _Startup(msgspec.Struct):
    attempts: tuple[_Attempt, ...] = ()


class StartupPhases:
    """Reads the file when it has changed."""

    def __init__(self, run_directory: str) -> None:
        self._path = os.path.join(run_directory, "startup.json") if run_directory else ""
        self._seen: tuple[int, int] | None = None
        self._found: dict[str, float] = {}

    def of_newest(self) -> dict[str, float]:
        """Return seconds by phase, of the node or rank that took longest; nothing where there is no such file."""
        if not self._path:
            return {}
        try:
            status = os.stat(self._path)
            version = (status.st_mtime_ns, status.st_size)
            if version != self._seen and status.st_size <= LARGEST_BYTES:
                self._seen = version
                with open(self._path, "rb") as file:
                    self._found = _phases(file.read(LARGEST_BYTES))
        except (OSError, msgspec.MsgspecError):
            return {}
        return self._found


def _phases(data: bytes) -> dict[str, float]:
    attempts = msgspec.json.decode(data, type=_Startup).attempts
    if not attempts:
        return {}
    newest = max(attempts, key=lambda each: each.attempt)
    return {each.phase: each.longest_s for each in newest.phases[:MOST_PHASES] if each.phase.isidentifier()}
