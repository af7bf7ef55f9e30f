"""Calls into libraries that may hang for ever: made by a thread that can be left behind.

hdfs-native and fsspec know no time limit, and a call into them cannot be interrupted. So the call is made by a companion thread,
and the caller waits for as long as there is progress. A companion that is given up on is not waited for; it must ask before it
touches anything of the caller's (`CallProgress.touching`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, Stalled

T = TypeVar("T")


class _GivenUp(Exception):  # noqa: N818 (ends an abandoned thread)
    """The caller does not wait for this call any more."""


class CallProgress:
    """What a watched call shares with the caller that waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = 0
        self._is_given_up = False
        self._is_done = False

    def step(self) -> None:
        """Note that something has come or gone: the time for a stall begins anew. Ends the call where it was given up."""
        with self._changed:
            if self._is_given_up:
                raise _GivenUp
            self._steps += 1

    @contextmanager
    def touching(self) -> Iterator[None]:
        """Do something with what is the caller's: not when it has given up, and it cannot give up meanwhile."""
        with self._changed:
            if self._is_given_up:
                raise _GivenUp
            self._steps += 1
            yield

    def done(self) -> None:
        """Wake the caller."""
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Do not wait any longer."""
        with self._changed:
            self._is_given_up = True
            self._changed.notify_all()

    def wait(self, stall_s: float) -> bool:
        """Wait until it is done (True), or has been given up or without progress for so long (False; it is given up then)."""
        with self._changed:
            while True:
                steps = self._steps
                self._changed.wait_for(lambda: self._is_done or self._is_given_up, stall_s)
                if self._is_done and not self._is_given_up:
                    return True
                if self._is_given_up or steps == self._steps:
                    self._is_given_up = True
                    return False


class _Call(Generic[T]):
    def __init__(self, work: Callable[[CallProgress], T]) -> None:
        self.work, self.progress = work, CallProgress()
        self.result: list[T] = []
        self.error: BaseException | None = None

    def carry_out(self) -> None:
        try:
            self.result.append(self.work(self.progress))
        except BaseException as error:
            self.error = error
        self.progress.done()


class CallWatcher:
    """Companion threads of one store. They are daemons: the process may end while one of them hangs."""

    def __init__(self, url: str, stall_s: float) -> None:
        """`stall_s`: seconds without progress after which a call is given up."""
        self._url, self._stall_s = url, stall_s
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call[object] | None]] = []

    def run(
        self, path: str, work: Callable[[CallProgress], T], cancel: Cancellation | None = None, *, more_s: float = 0.0
    ) -> T:
        """Return what `work` returns, or raise what it raises; `Stalled` where it hangs, `Cancelled` where it is called off.

        After either of these two `work` may still be running, in its own time. `more_s` is added to the time for a stall, for
        work that makes all its progress in one step.
        """
        stall_s = self._stall_s + more_s
        call: _Call[T] = _Call(work)
        inbox = self._take()
        inbox.put(call)  # type: ignore[arg-type]  # the companion does not look at what it returns
        watched: AbstractContextManager[None] = nullcontext()
        if cancel is not None:
            watched = cancel.calling(call.progress.give_up)
        try:
            with watched:
                finished = call.progress.wait(stall_s)
        except BaseException:  # Ctrl-C
            call.progress.give_up()
            inbox.put(None)
            raise
        if not finished:
            inbox.put(None)
            if cancel is not None and cancel.cancelled:
                raise Cancelled(self._url, path, "called off")
            raise Stalled(self._url, path, f"nothing moved for {stall_s:g} s")
        with self._lock:
            self._idle.append(inbox)
        if call.error is not None:
            raise call.error
        return call.result[0]

    def close(self) -> None:
        """End the companions that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _take(self) -> queue.SimpleQueue[_Call[object] | None]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        inbox: queue.SimpleQueue[_Call[object] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="store-companion", daemon=True).start()
        return inbox


def _serve(inbox: queue.SimpleQueue[_Call[object] | None]) -> None:
    while (call := inbox.get()) is not None:
        call.carry_out()
        del call
