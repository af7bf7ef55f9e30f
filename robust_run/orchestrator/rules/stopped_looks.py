"""Whether a worker is stopped and stays so: from what the kernel says of it, look by look. Pure.

A world of one rank has nobody inside that waits for it, so its own launcher cannot tell harm from somebody's wish. What looks the
same and is left alone: a debugger (state t), Ctrl-Z (another signal), a frozen container (no such state), a throttle that stops
and continues in turns (it runs between looks), a scheduler that suspends a job (its launcher is stopped too; and so are we: looks
that are far apart count for nothing).
"""

from __future__ import annotations

import msgspec

SIGSTOP = 19
#: How often a worker is looked at.
LOOK_S = 1.0
#: Stopped for so long, it is told, and again and again while it stays so.
STOPPED_S = 10.0
TELL_AGAIN_S = 2.0
#: Looks that are further apart were parted by something else: who looks was stopped as well, or got no CPU.
LATEST_S = 5.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    state: str
    """As in /proc: T is stopped by a signal, t by a debugger."""
    stopped_by: int
    """The signal; 0: not known."""
    turns: str
    """How often its main thread was given a CPU; "": not known."""
    start_ticks: int
    """When it was started: a pid with another start is another process."""
    parent_state: str
    """Of its launcher."""

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by SIGSTOP, under a launcher that runs."""
        by_signal = self.state == "T" and self.stopped_by == SIGSTOP and bool(self.turns)
        return by_signal and bool(self.parent_state) and self.parent_state not in "TtZX"


class StopWatch:
    """Looks at one worker."""

    def __init__(self) -> None:
        self._first: Seen | None = None
        self._since_s = self._seen_s = 0.0
        self._told_s: float | None = None

    def take(self, seen: Seen | None, now_s: float) -> float | None:
        """Take in a look; return for how many seconds it has been stopped, each time that this is to be told."""
        if seen is None or not seen.is_stopped:
            self._first = None
            return None
        if self._first != seen or now_s - self._seen_s > LATEST_S:
            self._first, self._since_s, self._told_s = seen, now_s, None
        self._seen_s = now_s
        is_due = self._told_s is None or now_s - self._told_s >= TELL_AGAIN_S
        if now_s - self._since_s < STOPPED_S or not is_due:
            return None
        self._told_s = now_s
        return now_s - self._since_s
