"""From dumps to stacks: what Python's faulthandler writes when a signal asks it for them, and what `py-spy dump --json` prints.

faulthandler's text (CPython 3.10 to 3.14) is, thread by thread, a header and its frames, innermost first:

    Thread 0x00007f01 [name] (most recent call first):
      File "/app/data.py", line 88 in get
      ...

The name in brackets exists from 3.14 on. Threads come newest first, so the main thread is the last; of more than 100 threads
the rest, and with it the main thread, is left out and replaced by a line `...`. The same, indented, means that a stack is
deeper than 100. A reader of the file while it is being written sees the text end anywhere.
"""

from __future__ import annotations

import re

import msgspec

from robust_run.decoders import json_decoder
from robust_run.tracer.types import Frame, ThreadStack

#: What is looked at of one dump: 100 threads with 100 frames of 100 characters are 1 MB.
TEXT_CHARACTERS = 4 * 1024 * 1024
THREADS = 128
FRAMES = 128
#: A name or path that is longer is cut.
NAME_CHARACTERS = 500

_HEADER = re.compile(
    r"(?:(?P<current>Current thread|Thread) 0x[0-9a-fA-F]{1,16}(?: \[(?P<name>[^\n]{0,200})\])?|Stack)"
    r" \(most recent call first\):\s*"
)
_FRAME = re.compile(r'  File (?:"(?P<file>[^\n]*)"|\?\?\?), line (?P<line>\d{1,9}|\?\?\?) in (?P<function>[^\n]+)')


def parse_dump(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of the newest dump in `text`, in its order; none where there is no dump. Never raises.

    The last thread is marked as the main one unless the dump says that threads are left out after it. A half-written last
    line is ignored.
    """
    threads: list[tuple[str, list[Frame]]] = []
    whole = True
    before = ""
    for line in _whole_lines(text):
        header = _HEADER.fullmatch(line)
        if header is not None:
            if before:  # a blank line parts the threads of one dump, nothing parts two dumps
                threads.clear()
            whole = True
            if len(threads) < THREADS:
                threads.append(((header["name"] or "").strip(), []))
            else:
                whole = False
        elif line.startswith("..."):
            whole = False
        elif threads and len(threads[-1][1]) < FRAMES:
            frame = _frame(line)
            if frame is not None:
                threads[-1][1].append(frame)
        before = line
    last = len(threads) - 1
    return tuple(
        ThreadStack(name=name, is_main=whole and index == last, frames=tuple(frames))
        for index, (name, frames) in enumerate(threads)
    )


def ends_whole(text: str) -> bool:
    """Whether `text` plainly ends where a dump ends: with the outermost frame of a program's main thread.

    False does not mean that it goes on: a thread that is no main thread, or embedded Python, ends otherwise.
    """
    tail = text[-2 * NAME_CHARACTERS :]
    return tail.endswith((" in <module>\n", " in _run_module_as_main\n")) and bool(parse_dump(text))


def _whole_lines(text: str) -> list[str]:
    """Return the complete lines of the end of the text."""
    lines = text[-TEXT_CHARACTERS:].split("\n")
    return lines[:-1]


def _frame(line: str) -> Frame | None:
    """Return the frame that a line tells; None for other lines (`Garbage-collecting`, `<no Python frame>`)."""
    found = _FRAME.fullmatch(line)
    if found is None:
        return None
    return Frame(
        found["function"][:NAME_CHARACTERS],
        (found["file"] or "???")[-NAME_CHARACTERS:],
        int(found["line"]) if found["line"].isascii() and found["line"].isdigit() else 0,
    )


# What py-spy prints of a process that cannot answer for itself: a list of threads, each with frames, innermost first. From Python
# 3.11 on py-spy gives qualified names (`Thread.run`) where faulthandler gives plain ones; stacks of both are compared, so the
# plain name is kept.


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
        threads = json_decoder(list[_SpiedThread], strict=False).decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    main = _main_of(threads)
    if len(threads) > THREADS:
        threads.sort(key=lambda thread: thread is not main)  # it is the last to be left out
    return tuple(
        ThreadStack(
            name=(thread.thread_name or "")[:NAME_CHARACTERS],
            is_main=thread is main,
            tid=max(0, thread.os_thread_id or (thread.pid if thread is main else 0)),
            frames=tuple(_spied_frame(frame) for frame in thread.frames[:FRAMES]),
        )
        for thread in threads[:THREADS]
    )


def _main_of(threads: list[_SpiedThread]) -> _SpiedThread | None:
    """Return the main thread: by the kernel's number, else by its name, which another may have been given too: then none is.

    Of Python 3.10 py-spy tells no numbers, and names only where the program has imported threading.
    """
    first = [thread for thread in threads if (thread.os_thread_id or 0) == thread.pid > 0]
    only = threads if len(threads) == 1 and not threads[0].os_thread_id else []
    named = first or only or [thread for thread in threads if thread.thread_name == "MainThread"]
    return named[0] if len(named) == 1 else None


def _spied_frame(frame: _SpiedFrame) -> Frame:
    """Return the frame in our words, within our bounds."""
    plain = frame.name.rpartition(".")[2] or frame.name
    line = frame.line if 0 <= frame.line < 10**9 else 0
    return Frame(plain[:NAME_CHARACTERS], frame.filename[-NAME_CHARACTERS:], line)
