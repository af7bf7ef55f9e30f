"""Sends the notices for one target, in a thread of its own: retries, and never makes anybody wait."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from robust_run.launcher.records.notifier.delivery import Delivery, DeliveryResult
from robust_run.launcher.records.notify.target import NotifyTarget
from robust_run.launcher.records.notify.types import Notification
from robust_run.launcher.records.notify.wording import with_suppressed

#: Notices that wait for a target. One that is slower loses the oldest, which the next one says.
MOST_WAITING = 32
#: Tries of one notice, and the pause after the first; each is twice as long as the one before, 15 s in all.
TRIES = 5
PAUSE_S = 1.0


class Sender:
    """The queue of one target."""

    def __init__(
        self,
        target: NotifyTarget,
        say: Callable[[str], None],
        delivery: Delivery | None = None,
        pause_s: float = PAUSE_S,
        name: str = "",
    ) -> None:
        """`say`: tells the user, from any thread. `name`: what it is called there; no secret is in it."""
        self._name = name or target.shown
        self._say = say
        self._delivery = delivery or Delivery(target)
        self._pause_s = pause_s
        self._waiting: deque[Notification] = deque()
        self._changed = threading.Condition()
        self._is_busy = self._is_closed = False
        self._left_out = 0
        self._has_failed = False
        self.counts: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        """Notices by what became of them."""
        self._thread: threading.Thread | None = None

    def offer(self, notice: Notification) -> None:
        """Take in a notice; never waits."""
        with self._changed:
            if self._is_closed:
                return
            if len(self._waiting) >= MOST_WAITING:
                dropped = self._waiting.popleft()
                self._left_out += 1 + dropped.suppressed
                self.counts["dropped"] += 1
            self._waiting.append(notice)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def pids(self) -> list[int]:
        """Return the command that runs, if one does."""
        pid = self._delivery.pid
        return [] if pid is None else [pid]

    def close(self, give_up_at_s: float, now_s: Callable[[], float]) -> int:
        """Wait until everything was sent, at most until then; return how many notices were not, and say so."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting and not self._is_busy, timeout=max(give_up_at_s - now_s(), 0.0)
            )
            left = len(self._waiting) + self._is_busy
            self._waiting.clear()
            self._is_closed = True
            is_news = bool(left) and not self._has_failed
            self._has_failed = self._has_failed or is_news  # what is on its way is called off now, and says nothing
            self._changed.notify_all()
        self._delivery.stop()
        if is_news:
            notices = "1 notice was" if left == 1 else f"{left} notices were"
            self._say(f"--notify {self._name}: {notices} not sent: it has not answered, and the job is over")
        return left

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                notice = with_suppressed(self._waiting[0], self._left_out + self._waiting[0].suppressed)
                self._waiting.popleft()
                self._left_out, self._is_busy = 0, True
            self._finish(notice, self._send(notice))

    def _send(self, notice: Notification) -> DeliveryResult:
        body = _encoded(notice)
        pause_s = self._pause_s
        for number in range(TRIES):
            result = self._delivery.hand_over(body)
            if result.ok or not result.again or number == TRIES - 1:
                return result
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closed, timeout=max(result.pause_s or 0.0, pause_s)):
                    return result
            pause_s *= 2
        raise AssertionError("the last try returns")

    def _finish(self, notice: Notification, result: DeliveryResult) -> None:
        with self._changed:
            self.counts["sent" if result.ok else "failed"] += 1
            if not result.ok:
                self._left_out += 1 + notice.suppressed
        if not result.ok and not self._has_failed:
            self._say(f"--notify {self._name}: a notice could not be sent: {result.words}; the job goes on")
        self._has_failed = not result.ok


def _encoded(notice: Notification) -> bytes:
    """Return it as JSON. Names of files may hold bytes that are no text, which no receiver could read: `?` stands for them."""
    try:
        return msgspec.json.encode(notice)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(notice), ensure_ascii=False)
        return text.encode("utf-8", "replace")
