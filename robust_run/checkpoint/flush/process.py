"""The process that writes one generation, or removes older checkpoints, and ends.

    python -m robust_run.checkpoint.flush.process < ORDER > ANSWERS

It dies with the keeper that started it. A SIGTERM ends it: what it has written is removed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.memory.flushing.words import AnyOrder, FlushDone, FlushOrder, FlushProgress, RemoveOld
from robust_run.health.sensors.process import die_with_parent

_NICE = 10
_PROGRESS_S = 1.0
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_LOWEST_BEST_EFFORT = 2 << 13 | 7


class _Stopped(BaseException):
    """Told to end."""


def main(parent: int) -> None:
    """Read the order, write, answer."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Stopped

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not die_with_parent(parent):
        return
    order: AnyOrder = msgspec.json.decode(sys.stdin.buffer.readline(), type=AnyOrder)
    if isinstance(order, RemoveOld):
        answer(remove_old(order))
        return
    if not order.is_last:
        _yield_to_others()
    signal.signal(signal.SIGTERM, stop)
    try:
        done = flush(order)
    except _Stopped:
        done = FlushDone(text="", is_left=True)
    answer(done)


def answer(said: FlushProgress | FlushDone) -> None:
    """Tell the keeper."""
    with suppress(OSError):
        os.write(1, msgspec.json.encode(said) + b"\n")


def flush(order: FlushOrder) -> FlushDone:
    """Write what is ordered; what goes wrong is said in the answer."""
    from robust_run.checkpoint.flush import choosing, parts, writing
    from robust_run.errors import RobustRunError
    from robust_run.store.paths import shown

    began_s = time.monotonic()
    generation, folder = max(((each.attempt, each.step) for each in order.parts), default=(-1, -1)), ""
    try:
        folder = parts.stream_of(order.parts[0]) if order.parts else order.storage
        if not folder:
            return FlushDone()  # its program names no folder: memory is all that it wants
        if not order.parts:
            choosing.say_nothing_is_held(order, folder)
            return FlushDone()
        choosing.clear_up(order, folder)
        choice = choosing.choose(order, folder)
        generation, outcome = choice.generation, None
        if not choice.is_stored:
            outcome = writing.write(order, generation, folder, _Progress(generation[1], shown(folder)))
        choosing.forget_meeting(order, folder)
    except (RobustRunError, OSError, ValueError, MemoryError) as error:
        where = shown(folder) if folder else "storage"
        text = f"step {generation[1]} could not be written from memory to {where}: {error}"
        trouble = f"{type(error).__name__} in {where}"
        return FlushDone(attempt=generation[0], step=generation[1], text=text, trouble=trouble, is_left=True)
    text, remove = "", None
    if outcome is not None and outcome.keeping is not None:
        remove = RemoveOld(folder=folder, rule=outcome.keeping)
    if outcome is not None and 0 in order.ranks:
        size, took_s = _size(outcome.size_bytes), time.monotonic() - began_s
        text = f"step {generation[1]} was written from memory to {shown(folder)} ({size} in {took_s:.1f} s)"
    return FlushDone(attempt=generation[0], step=generation[1], text=text, is_stored=True, remove=remove)


def remove_old(order: RemoveOld) -> FlushDone:
    """Remove older checkpoints. A SIGTERM lets it finish the one that it is at: half of one is nobody's to remove later."""
    from robust_run.ckpt_io.catalog import keep_newest
    from robust_run.errors import RobustRunError
    from robust_run.store.paths import shown

    is_told = False

    def stop(*_: object) -> None:
        nonlocal is_told
        is_told = True

    signal.signal(signal.SIGTERM, stop)
    _yield_to_others()
    try:
        keep_newest(order.folder, order.rule, goes_on=lambda: not is_told)
    except (RobustRunError, OSError, ValueError) as error:
        return FlushDone(text=f"older checkpoints in {shown(order.folder)} are not removed: {error}")
    return FlushDone()


class _Progress:
    """Tells the keeper now and then how far it is. Called by one thread at a time."""

    def __init__(self, step: int, url: str) -> None:
        self._step, self._url = step, url
        self._told_s = time.monotonic()

    def __call__(self, done_bytes: int, of_bytes: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _PROGRESS_S:
            self._told_s = now_s
            answer(FlushProgress(step=self._step, done_bytes=done_bytes, of_bytes=of_bytes, url=self._url))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 27 else f"{size_bytes / (1 << 20):.1f} MiB"


def _yield_to_others() -> None:
    """Let training have what it wants of processors and disks first."""
    with suppress(OSError):
        os.nice(_NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _LOWEST_BEST_EFFORT)


if __name__ == "__main__":
    main(os.getppid())
