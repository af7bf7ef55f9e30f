"""Reads what `py-spy dump --json` prints: the stacks of a process that cannot answer for itself.

A list of threads, each with `thread_name` and `frames` (innermost first) of `name`, `filename`, `line`. From Python 3.11 on
py-spy gives qualified names (`Thread.run`) where faulthandler gives plain ones; stacks of both are compared, so the plain name
is kept.
"""

from __future__ import annotations

import msgspec

from robust_run.tracer.stacks.fault_dump import FRAMES, NAME_CHARACTERS, TEXT_CHARACTERS, THREADS
from robust_run.tracer.types import Frame, ThreadStack


class _SpiedFrame(msgspec.Struct):
    name: str = "???"
    filename: str = "???"
    line: int = 0


class _SpiedThread(msgspec.Struct):
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: list[_SpiedFrame] = []


def parse_spied(text: str | bytes) -> tuple[ThreadStack, ...]:
    """Return the threads, in py-spy's order; none where the text is anything else. Never raises."""
    if len(text) > TEXT_CHARACTERS:
        return ()
    try:
        threads = msgspec.json.decode(text, type=list[_SpiedThread], strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    return tuple(
        ThreadStack(
            name=(thread.thread_name or "")[:NAME_CHARACTERS],
            is_main=thread.thread_name == "MainThread" or (thread.os_thread_id or 0) == thread.pid > 0,
            frames=tuple(_frame(frame) for frame in thread.frames[:FRAMES]),
        )
        for thread in threads[:THREADS]
    )


def _frame(frame: _SpiedFrame) -> Frame:
    """Return the frame in our words, within our bounds."""
    plain = frame.name.rpartition(".")[2] or frame.name
    line = frame.line if 0 <= frame.line < 10**9 else 0
    return Frame(plain[:NAME_CHARACTERS], frame.filename[-NAME_CHARACTERS:], line)
