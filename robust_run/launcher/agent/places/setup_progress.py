"""Progress of a set-up, for people: what its commands write, what is waited for, and whether to go on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.snapshot.capture.running import Heard
from robust_run.snapshot.rules import key

#: When and how often it is said what is waited for.
SAY_AFTER_S, SAY_EVERY_S = 2.0, 5.0
_KEPT_LINES, _SHOWN_LINES = 5000, 20
_LINE_CHARACTERS = 300


class BuildStopped(PlatformError):  # noqa: N818 - a signal, no error
    """The build is given up, not failed: another may take over."""


class SetupProgress:
    """What one set-up does. Asked by the thread that does it, and ended by another."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self.began_s = clock.monotonic_s()
        self.doing: str | bytes = "looking for it in the store"
        """A line of the commands as they wrote it: of millions, few are shown."""
        self.heard = Heard(self._hear, self._hear_nothing)
        """What runs the commands tells this of them."""
        self._clock, self._say = clock, say
        self._over = threading.Event()
        self._output: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._say_at_s = self.began_s + SAY_AFTER_S

    def give_up(self) -> None:
        """Have it end the next time that it asks."""
        self._over.set()

    def output(self) -> tuple[bytes, ...]:
        """Return what the commands wrote, the newest lines of it."""
        return tuple(self._output)

    def _hear(self, line: bytes) -> None:
        """Take a line of the commands. Raises `BuildStopped`."""
        self._output.append(line)
        self.doing = line
        self._check()

    def _hear_nothing(self) -> None:
        """Be asked while the commands write nothing. Raises `BuildStopped`."""
        if not self._output:
            self.doing = "the commands run, and have written nothing yet"
        self._check()

    def wait_for(self, what: str) -> None:
        """Be told what is waited for. Raises `BuildStopped`."""
        self.doing = f"another node installs: {_plain(what.encode())}"
        self._check()

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the end. Raises `BuildStopped`."""
        self._over.wait(seconds)
        self._check()

    def _check(self) -> None:
        if self._over.is_set():
            raise BuildStopped("the launcher was told to end")
        now_s = self._clock.monotonic_s()
        if now_s >= self._say_at_s:
            self._say_at_s = now_s + SAY_EVERY_S
            doing = f"installing: {_plain(self.doing)}" if isinstance(self.doing, bytes) else self.doing
            self._say(f"set-up, {now_s - self.began_s:.0f} s: {doing}")

    def show_output(self) -> None:
        """Say the last lines that the commands wrote."""
        for line in list(self._output)[-_SHOWN_LINES:]:
            self._say(f"set-up | {_plain(line)}")


def _plain(line: bytes) -> str:
    text = key.blanked(line[: 8 * _LINE_CHARACTERS].decode("utf-8", "replace"))
    return "".join(character for character in text if character.isprintable())[:_LINE_CHARACTERS]
