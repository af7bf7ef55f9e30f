"""`robust_run.report(step=..., loss=..., grad_norm=...)`: what a script says about its training, in a few microseconds.

This runs inside a worker. It imports nothing but the standard library, and no failure in it reaches the program: one that
happens switches it off, with one line on stderr. Without a launcher, or with ROBUST_REPORT=off, it does nothing.
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
        self._sequence = 0
        self._file = _open(path, self._pid)

    def write(self, step: int | None, values: dict[str, object]) -> None:
        """Write one report. Raises what a value that is no number raises, and nothing is written then."""
        if os.getpid() != self._pid:  # a fork of the worker: the file is the worker's
            return
        slot = bytearray(SLOT_BYTES)
        count = 0
        for name, value in values.items():
            if value is None or count == MOST_VALUES:
                continue
            number = float(value)  # type: ignore[arg-type]
            VALUE.pack_into(slot, VALUES_AT + count * VALUE.size, name.encode()[:NAME_BYTES], number)
            count += 1
        with self._lock:
            self._sequence += 1
            TIMES.pack_into(slot, BODY_AT, time.time(), time.monotonic(), NO_STEP if step is None else int(step))
            HEAD.pack_into(slot, 0, self._sequence, zlib.crc32(memoryview(slot)[BODY_AT:]), count)
            at = HEADER_BYTES + (self._sequence - 1) % SLOTS * SLOT_BYTES
            self._file[at : at + SLOT_BYTES] = slot


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
    if owner not in (0, pid):
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
    names of at most 24 bytes). Takes numbers and whatever `float()` takes; of a tensor on a GPU that waits for the GPU, so
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
        text = f"robust-run: report() is off in this process: {type(error).__name__}: {error}"
        print(text[:300], file=sys.stderr, flush=True)
    except Exception:  # noqa: S110 (not even stderr: nothing is left to say it with)
        pass
