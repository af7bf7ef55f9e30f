"""A leader that is started again and finds no journal: somebody has removed the run directory while the job ran.

How it is known. The guard names launchers that it has started, so this is no new job; and no line of a journal is there, the
first of which is written before any launcher is started. What was decided, and what is in the queues, is not known any more. To
begin anew would be wrong: launchers run whose names a new job would give again, and a trainer would wait for samples that are
gone. So what runs is told to end, in good order, and the job ends. What looks the same: a leader that was killed before it had
started anything, whose guard knows no launcher; one whose journal could not be written, on a full disk, cannot go on either. A
launcher has ended when the guard has collected it, so one whose process is gone is not waited for.
"""

from __future__ import annotations

import select
import signal
from collections.abc import Iterable

from robust_run.clock import Clock
from robust_run.orchestrator.guarding.words import AllKnown, Asked, Known, Link, Send

#: Launchers that are told to end have so long: as long as they give their workers, and a while.
LAST_WORDS_S = 60.0


class Bereft:
    """What is left of the job. Pure: takes in what the guard says."""

    def __init__(self, said: Iterable[object] = ()) -> None:
        self._running: set[str] = set()
        self.was_any = False
        """Whether there ever was a launcher."""
        self.asked = 0
        """The first signal that asked for an end."""
        for message in said:
            self.take(message)

    def take(self, message: object) -> list[Send]:
        """Take in the guard's next word; return what it is to do. A signal is passed on: told twice, a launcher ends at once."""
        if isinstance(message, AllKnown):
            self.was_any = bool(message.launchers)
            for known in message.launchers:
                self.take(known)
        elif isinstance(message, Known):
            self.was_any = True
            (self._running.add if message.code is None else self._running.discard)(message.name)
        elif isinstance(message, Asked):
            self.asked = self.asked or message.number
            return self.end_all(message.number)
        return []

    def end_all(self, number: int) -> list[Send]:
        """Return what ends those that run."""
        return [Send(name=name, number=number) for name in sorted(self._running)]

    @property
    def is_over(self) -> bool:
        """Whether nothing runs any more."""
        return not self._running


def first_word(link: Link) -> list[object]:
    """Wait for the guard's first word; return all that it has said. Raises EOFError, OSError."""
    said: list[object] = []
    while not any(isinstance(message, AllKnown) for message in said):
        said += link.receive()
    return said


def end_what_runs(link: Link, left: Bereft, clock: Clock) -> int:
    """Have all launchers end, and wait for that; return the job's exit code. The guard kills what is left.

    Raises EOFError, OSError: the guard is gone.
    """
    for order in left.end_all(signal.SIGTERM):
        link.send(order)
    give_up_at_s = clock.monotonic_s() + LAST_WORDS_S
    while not left.is_over and (for_s := give_up_at_s - clock.monotonic_s()) > 0:
        if select.select([link.socket], [], [], for_s)[0]:
            for message in link.receive():
                for order in left.take(message):
                    link.send(order)
    return 128 + left.asked if left.asked else 1
