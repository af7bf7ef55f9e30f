"""Tells all targets of one job's incidents. Called where incidents are recorded; returns at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.records.notifier.sender import Sender
from robust_run.launcher.records.notify import wording
from robust_run.launcher.records.notify.limiter import Limiter
from robust_run.launcher.records.notify.target import NotifyTarget, is_hidden, named, parse
from robust_run.launcher.records.notify.types import Notification
from robust_run.launcher.records.notify.wording import About
from robust_run.report.types import Incident

if TYPE_CHECKING:
    import asyncio

#: Characters of the first line of a file that --notify names.
LONGEST_LINE = 8192
#: How long the end of a job waits for its last notice.
LAST_S = 5.0


class Notifier:
    """See `incidents.IncidentBook.notifier`."""

    def __init__(
        self,
        about: About,
        senders: Sequence[Sender],
        clock: Clock,
        limiter: Limiter | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called before each notice, in the thread that it comes from."""
        self._before = before
        self._about = about
        self._senders = senders
        self._clock = clock
        self._limiter = limiter or Limiter()
        self._suppressed = 0

    def opened(self, incident: Incident) -> None:
        """An incident was judged."""
        self._offer(wording.opened(self._about, incident, self._clock.unix_s()))

    def resolved(self, incident: Incident) -> None:
        """The job trains again after it."""
        self._offer(wording.resolved(self._about, incident, self._clock.unix_s()))

    def ended(self, outcome: str, exit_code: int, reason: str, last: Incident | None) -> int:
        """The job is over: tell that, and wait a moment for what is on its way. Return how many notices were not sent."""
        self._offer(wording.ended(self._about, outcome, exit_code, reason, self._clock.unix_s(), last), must=True)
        return self.close(LAST_S)

    def close(self, patience_s: float) -> int:
        """Stop; return how many notices were not sent in that time."""
        give_up_at_s = self._clock.monotonic_s() + patience_s
        return sum(sender.close(give_up_at_s, self._clock.monotonic_s) for sender in self._senders)

    def counts(self) -> dict[str, int]:
        """Return how many notices were sent, failed, and suppressed: by the limit, or by a target that is too slow."""
        all_of: Counter[str] = Counter()
        for sender in self._senders:
            all_of.update(sender.counts)
        return {
            "sent": all_of["sent"],
            "failed": all_of["failed"],
            "suppressed": self._suppressed + all_of["dropped"],
        }

    def pids(self) -> list[int]:
        """Return the commands that run: they must be spared when an attempt's processes are ended."""
        return [pid for sender in self._senders for pid in sender.pids()]

    def _offer(self, notice: Notification, *, must: bool = False) -> None:
        self._before()
        before = self._limiter.suppressed
        self._limiter, passes = self._limiter.offer(self._clock.monotonic_s(), must=must)
        if not passes:
            self._suppressed += 1
            return
        notice = msgspec.structs.replace(notice, suppressed=before)
        for sender in self._senders:
            sender.offer(notice)


def notifier_of(notify: Sequence[str], about: About, clock: Clock, say: Callable[[str], None]) -> Notifier | None:
    """Return the notifier of a job's incidents; None where there is no target. What cannot be used is said, and left out."""
    safe_say = LoopSay(say)
    senders = []
    for number, text in enumerate(notify, 1):
        try:
            senders.append(Sender(target_of(text), safe_say, name=named(text, number, len(notify))))
        except UserError as error:
            which = f" (target {number} of {len(notify)})" if len(notify) > 1 else ""
            say(f"{error}{which}")
    return Notifier(about, senders, clock, before=safe_say.meet_loop) if senders else None


def missing_commands(notify: Sequence[str], which: Callable[[str], str | None]) -> list[str]:
    """Return a line for each command that this node does not have: whoever starts a job reads it, who is to be told never does.

    No error: a job that starts again by itself, on another node, goes on without the one that would be told.
    """
    lines = []
    for number, text in enumerate(notify, 1):
        with suppress(UserError):  # said by `notifier_of`
            target = target_of(text)
            if target.argv and which(target.argv[0]) is None:
                name = named(text, number, len(notify))
                lines.append(
                    f"--notify {name}: this node has no such command, so nobody would be told; the job goes on"
                )
    return lines


def target_of(text: str) -> NotifyTarget:
    """Return the target that a word of --notify names; `@FILE`: the one in the file's first line. Raises UserError."""
    if is_hidden(text):
        raise UserError(f"--notify {text}: the journal keeps no secrets; give it again with --resume to be told")
    if not text.startswith("@"):
        return parse(text)
    try:
        with open(text[1:], encoding="utf-8") as file:
            return parse(file.readline(LONGEST_LINE))
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
        raise UserError(f"--notify {text}: cannot read the file: {why}") from error


class LoopSay:
    """Says lines from other threads where the console is used: on the event loop, once there is one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._loop: asyncio.AbstractEventLoop | None = None

    def meet_loop(self) -> None:
        """Note the loop that runs in this thread, if one does."""
        import asyncio

        if self._loop is None:
            with suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()

    def __call__(self, text: str) -> None:
        """Say it."""
        try:
            if self._loop is None:
                self._say(text)
            else:
                self._loop.call_soon_threadsafe(self._say, text)
        except RuntimeError:  # the loop is closed: the job is over, and no other thread speaks
            self._say(text)
