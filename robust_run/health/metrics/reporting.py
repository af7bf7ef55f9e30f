"""`robust_run.report(step=..., loss=..., grad_norm=...)`: what a script says about its training, in a few microseconds.

This runs inside a worker. It imports nothing but the standard library, and no failure in it reaches the program: a value that is
no number is left out, anything else switches it off, with one line on stderr. A file belongs to the outermost process that
reports: what a worker starts inherits its environment, and must neither take its place nor keep it. Without a launcher, or
with ROBUST_REPORT=off, it does nothing.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import zlib
from contextlib import suppress
from typing import SupportsFloat

from robust_run.health.metrics.ring_format import (
    BODY_AT,
    FILE_BYTES,
    HEAD,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MOST_VALUES,
    NAME_BYTES,
    NO_STEP,
    SLOT_BYTES,
    SLOTS,
    TIMES,
    VALUE,
    VALUES_AT,
    VERSION,
)

VARIABLE = "ROBUST_REPORT"
"""Path of this worker's report file; `off`, or unset: nothing is reported."""


class Reporter:
    """Writes one report file. Never raises but in `open`."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._has_complained = False
        self._file = _open(path, self._pid)
        self._sequence = _newest(self._file)

    def write(self, step: int | None, values: dict[str, object]) -> None:
        """Write one report. What is no number is left out, and that is said once."""
        if os.getpid() != self._pid or HEADER.unpack_from(self._file)[3] != self._pid:
            return  # a fork of the worker, or a process that it started and that reported first: the file is the worker's
        slot = bytearray(SLOT_BYTES)
        count = 0
        for name, value in values.items():
            if value is None or count == MOST_VALUES:
                continue
            try:
                number = float(value)  # type: ignore[arg-type]
                VALUE.pack_into(slot, VALUES_AT + count * VALUE.size, name.encode()[:NAME_BYTES], number)
            except Exception as error:  # the program's own types may raise anything
                self._leave_out(name, error)
                continue
            count += 1
        number_of_step = NO_STEP
        try:
            number_of_step = NO_STEP if step is None else int(step)
            TIMES.pack(0.0, 0.0, number_of_step)
        except Exception as error:
            self._leave_out("step", error)
            number_of_step = NO_STEP
        with self._lock:
            self._sequence += 1
            TIMES.pack_into(slot, BODY_AT, time.time(), time.monotonic(), number_of_step)
            HEAD.pack_into(slot, 0, self._sequence, zlib.crc32(memoryview(slot)[BODY_AT:]), count)
            at = HEADER_BYTES + (self._sequence - 1) % SLOTS * SLOT_BYTES
            self._file[at : at + SLOT_BYTES] = slot

    def _leave_out(self, name: str, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            _say(f"report() leaves {name!r} out, which is no number here: {type(error).__name__}: {error}")


def _newest(file: mmap.mmap) -> int:
    """Return the newest sequence in a file: who takes it over goes on from there, for readers know what they have seen."""
    found = 0
    for slot in range(SLOTS):
        at = HEADER_BYTES + slot * SLOT_BYTES
        sequence, crc, _ = HEAD.unpack_from(file, at)
        if sequence > found and zlib.crc32(file[at + BODY_AT : at + SLOT_BYTES]) == crc:
            found = sequence
    return found


def _may_replace(owner: int, pid: int) -> bool:
    """Whether a process may take a file from another: from one that is dead, or that it has started itself."""
    state, parent = _state_and_parent(owner)
    if state in (b"", b"Z", b"X"):
        return True
    for _ in range(100):
        if parent == pid or parent <= 1:
            break
        _, parent = _state_and_parent(parent)
    return parent == pid


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read(4096).rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return b"", 0
    return state, int(parent)


def _open(path: str, pid: int) -> mmap.mmap:
    """Map the file, made if it is not there, and claim it. Raises OSError, ValueError."""
    with suppress(FileExistsError):
        _create(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != FILE_BYTES:
            raise ValueError(f"{path} is no report file")
        file = mmap.mmap(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)
    magic, version, slots, owner = HEADER.unpack_from(file)
    if (magic, version, slots) != (MAGIC, VERSION, SLOTS):
        raise ValueError(f"{path} is no report file of this version")
    if owner not in (0, pid) and not _may_replace(owner, pid):
        raise ValueError(f"process {owner} writes {path}")
    HEADER.pack_into(file, 0, magic, version, slots, pid)
    return file


def _create(path: str) -> None:
    """Write an empty file: only scripts that report take up memory for it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, HEADER.pack(MAGIC, VERSION, SLOTS, 0))
        os.ftruncate(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)


class _State:
    """Of this process: nothing yet, a reporter, or off for good."""

    reporter: Reporter | None = None
    off_in = 0
    """The pid in which it is off: a fork of a warm process has an environment of its own to look at."""


def report(
    *,
    step: int | None = None,
    loss: SupportsFloat | None = None,
    grad_norm: SupportsFloat | None = None,
    **others: SupportsFloat | None,
) -> None:
    """Tell robust-run how training goes: NaN, jumps and a loss of speed are noticed and acted upon.

    Call it once a step, from any rank; `step` counts optimizer steps. `others` are further numbers by name (at most 12,
    names of at most 24 bytes). Takes numbers and all that `float()` takes; of a tensor on a GPU that waits for the GPU, so
    hand over what you have on the host anyway. Never raises; without robust-run it does nothing.
    """
    if _State.off_in and _State.off_in == os.getpid():
        return
    try:
        if _State.reporter is None:
            path = os.environ.get(VARIABLE, "")
            if path in ("", "off"):
                _State.off_in = os.getpid()
                return
            _State.reporter = Reporter(path)
        _State.reporter.write(step, {"loss": loss, "grad_norm": grad_norm, **others})
    except Exception as error:
        _switch_off(error)


def _switch_off(error: Exception) -> None:
    _State.off_in = os.getpid()
    try:
        text = f"report() is off in this process: {type(error).__name__}: {error}"
    except Exception:
        text = "report() is off in this process"
    _say(text)


def _say(text: str) -> None:
    with suppress(Exception):  # not even stderr: nothing is left to say it with
        print(f"robust-run: {text}"[:300], file=sys.stderr, flush=True)
