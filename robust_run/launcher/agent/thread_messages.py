"""Messages of helper threads to the agent, and the reports that they write."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

import msgspec

#: Lines that wait for the next flush; beyond that the oldest are lost, so that no thread can fill the memory.
_MOST_LINES = 100


class ThreadMessages:
    """Lines that threads have to say: the agent's own thread says them, because the console is its alone."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def __call__(self, line: str) -> None:
        """Have a line said soon; from any thread."""
        self._lines.append(line)

    def flush(self) -> None:
        """Say what there is; for the agent's thread."""
        while self._lines:
            self._say(self._lines.popleft())


def write_report(path: str, report: msgspec.Struct, say: Callable[[str], None]) -> None:
    """Write what a start brought, for people and programs. Where that is impossible, say so."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    except OSError as error:
        say(f"{path}: {error.strerror}: what the start brought is not written down")
