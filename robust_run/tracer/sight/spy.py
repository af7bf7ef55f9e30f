"""Asks py-spy for the stacks of a process.

py-spy reads the other process's memory: nothing happens in that process, in any state. `--nonblocking` does not pause it
either, so now and then what changes while it is read makes no sense, and is read again. It needs the right to trace (same user,
and where Yama is on, a target that allows it). Without py-spy a process at rest can be asked by a signal (`fault_signal`).

It is run from a thread: the agent collects exit statuses of strangers too, which `subprocess` copes with, while asyncio's own
watcher of children would warn about each that it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import subprocess
import sys
import time

import msgspec

from robust_run.tracer.sight.processes import small_file
from robust_run.tracer.stacks.dumps import TEXT_CHARACTERS, parse_spied
from robust_run.tracer.types import ThreadStack

TIMEOUT_S = 3.0
END_S = 1.0
TRIES = 3


def find_spy() -> str | None:
    """Return the path of py-spy: beside this Python, else on PATH; None if it is not installed."""
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class Spy:
    """py-spy, run for at most as many processes at a time as there are cores."""

    def __init__(self, program: str | None, at_once: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(max(1, at_once or os.cpu_count() or 1))
        self._hopeless: set[int] = set()
        """Gave nothing once: not asked again during this look."""

    async def stacks(self, pid: int) -> tuple[ThreadStack, ...]:
        """Return the stacks of a process, none if they cannot be had. If cancelled, py-spy ends by its own time-out."""
        if self._program is None or pid in self._hopeless:
            return ()
        argv = [self._program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        async with self._places:
            for _ in range(TRIES):
                began_s = time.monotonic()
                found = _named(pid, parse_spied(await asyncio.to_thread(_output, argv, self._timeout_s)))
                if found or time.monotonic() - began_s >= self._timeout_s:
                    break
        if not found:
            self._hopeless.add(pid)
        return found


def _named(pid: int, stacks: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
    """Return stacks with the kernel's names for threads that run no Python now, and that Python has no name for."""
    return tuple(
        msgspec.structs.replace(stack, name=small_file(f"/proc/{pid}/task/{stack.tid}/comm").strip())
        if stack.tid and not stack.frames and not stack.name
        else stack
        for stack in stacks
    )


def _output(argv: list[str], timeout_s: float) -> bytes:
    """Return what a program prints within bounds of time and size; nothing if it fails."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return b""
    assert process.stdout is not None
    try:
        with process.stdout:
            return _bounded(process.stdout.fileno(), time.monotonic() + timeout_s)
    except OSError:
        return b""
    finally:
        # One that the kernel does not let go, or that may not be killed, is left to itself.
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            process.kill()  # has no effect on one that has ended
            process.wait(END_S)


def _bounded(descriptor: int, until_s: float) -> bytes:
    """Return all that comes through a pipe; nothing if it is too long or has not ended in time."""
    text = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(text) <= TEXT_CHARACTERS and selector.select(max(0.0, until_s - time.monotonic())):
            more = os.read(descriptor, 1 << 16)
            if not more:
                return bytes(text)
            text += more
    return b""
