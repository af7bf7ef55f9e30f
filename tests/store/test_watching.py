"""Calls that may hang: given up after a stall, and never touching what is the caller's after that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from jobs import wait_for

from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, NotFound, Stalled
from robust_run.store.watching import CallProgress, CallWatcher


def test_results_and_errors_come_through_and_companions_are_used_again() -> None:
    before = companions()
    watcher, threads = CallWatcher("x://", 60), set()
    for number in range(5):
        assert watcher.run("f", lambda _, number=number: (threads.add(threading.get_ident()), number)[1]) == number
    with pytest.raises(NotFound):
        watcher.run("f", lambda _: (_ for _ in ()).throw(NotFound("x://", "f", "gone")))
    assert len(threads) == 1
    watcher.close()
    wait_for(lambda: companions() <= before, "the companion ends")


def test_what_hangs_is_given_up_and_touches_nothing_afterwards() -> None:
    before = companions()
    touched, release, ended, buffer = threading.Event(), threading.Event(), threading.Event(), bytearray(3)

    def work(progress: CallProgress) -> None:
        try:
            with progress.touching():
                buffer[0] = 1
            touched.set()
            assert release.wait(60)
            with progress.touching():
                buffer[1] = 1
        finally:
            ended.set()

    class Begun(Cancellation):
        """The caller begins to wait when the work has touched something, however late its thread came to run."""

        @contextmanager
        def calling(self, interrupt: Callable[[], None]) -> Iterator[None]:
            assert touched.wait(60)
            with super().calling(interrupt):
                yield

    watcher = CallWatcher("x://h", 0.1)
    with pytest.raises(Stalled, match=r"x://h/f: nothing moved for 0\.1 s"):
        watcher.run("f", work, Begun())
    release.set()
    assert ended.wait(60)
    assert buffer == b"\1\0\0"
    assert watcher.run("f", lambda _: "another companion", more_s=60) == "another companion"
    watcher.close()
    wait_for(lambda: companions() <= before, "both companions end")


def test_what_is_slow_but_moves_is_waited_for() -> None:
    """The time for a stall is longer than a busy machine lets a thread wait, and what is done takes longer than that."""
    stall_s, pauses = 5.0, threading.Event()

    def work(progress: CallProgress) -> str:
        until_s = time.monotonic() + stall_s + 0.5
        while time.monotonic() < until_s:
            pauses.wait(0.1)
            progress.step()
        return "done"

    watcher = CallWatcher("x://", stall_s)
    assert watcher.run("f", work) == "done"
    watcher.close()


def test_work_of_one_step_is_given_more_time() -> None:
    watcher = CallWatcher("x://", 0.01)
    assert watcher.run("f", lambda _: threading.Event().wait(0.1) or "done", more_s=60) == "done"
    watcher.close()


def test_what_is_called_off_is_not_waited_for() -> None:
    before = companions()
    release, cancel, watcher = threading.Event(), Cancellation(), CallWatcher("x://", 60)

    def work(_progress: CallProgress) -> None:
        threading.Thread(target=cancel.cancel, daemon=True).start()
        release.wait(60)

    with pytest.raises(Cancelled):
        watcher.run("f", work, cancel)
    release.set()
    wait_for(lambda: companions() <= before, "the companion ends")


def companions() -> set[threading.Thread]:
    """Those of stores that other tests left open count, too."""
    return {thread for thread in threading.enumerate() if thread.name == "store-companion"}
