"""Asks py-spy for the stacks of a process that cannot answer: stopped, without a handler, or stuck in the kernel.

py-spy reads the other process's memory; `--nonblocking` does not pause it, which also works on a stopped one. It needs the
right to trace (same user, and where Yama is on, a target that allows it). Without py-spy there are simply no such stacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from robust_run.tracer.stacks.fault_dump import TEXT_CHARACTERS
from robust_run.tracer.stacks.pyspy import parse_spied
from robust_run.tracer.types import ThreadStack

TIMEOUT_S = 3.0
END_S = 1.0


def find_spy() -> str | None:
    """Return the path of py-spy: beside this Python, else on PATH; None if it is not installed."""
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class Spy:
    """py-spy, run for at most as many processes at a time as there are cores."""

    def __init__(self, program: str | None, at_once: int | None = None) -> None:
        self._program = program
        self._places = asyncio.Semaphore(max(1, at_once or os.cpu_count() or 1))
        self._hopeless: set[int] = set()
        """Gave nothing once: not asked again during this look."""

    async def stacks(self, pid: int) -> tuple[ThreadStack, ...]:
        """Return the stacks of a process, none if they cannot be had."""
        if self._program is None or pid in self._hopeless:
            return ()
        async with self._places:
            found = parse_spied(await _output([self._program, "dump", "--nonblocking", "--json", "--pid", str(pid)]))
        if not found:
            self._hopeless.add(pid)
        return found


async def _output(argv: list[str]) -> bytes:
    """Return what a program prints within bounds of time and size; nothing if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=TEXT_CHARACTERS,
        )
    except OSError:
        return b""
    assert process.stdout is not None
    try:
        text = await asyncio.wait_for(_bounded(process.stdout), TIMEOUT_S)
    except (asyncio.TimeoutError, OSError):
        text = b""
    finally:
        if process.returncode is None:
            _end(process)
        # One that the kernel does not let go is left to it.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
    return text


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """Return all of a stream; nothing if it is too long."""
    text = b""
    while len(text) <= TEXT_CHARACTERS:
        more = await stream.read(1 << 16)
        if not more:
            return text
        text += more
    return b""


def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what may still run; that it has just ended is no error."""
    try:
        process.kill()
    except ProcessLookupError:
        return
