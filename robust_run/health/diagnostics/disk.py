"""Check of a folder's disk: how fast it is written durably and read back, whether it is the same, whether there is room.

The file never has a name where the file system allows it (O_TMPFILE), else it loses it at once: nothing is left even by
SIGKILL. No more than half of what is free is used.

    echo '{"check": "disk", "node": "here", "folder": "/scratch"}' | python -m robust_run.health.diagnostics.disk
"""

from __future__ import annotations

import errno
import os
import tempfile
import time

import msgspec
import xxhash

from robust_run.health.checks.types import CheckProgramOrder, Result
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.program import PassCounter, Rate, RefusedError, main, one_line

USUAL_BYTES, MOST_BYTES, LEAST_BYTES = 128 << 20, 16 << 30, 1 << 20
CHUNK_BYTES = 4 << 20
#: What a full or broken disk answers: a finding about the node, not a failure of the check.
TELLING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}


def measure(order: CheckProgramOrder, faults: Faults) -> Result:
    """Return rates of writing (with fsync) and reading, or what the disk refuses."""
    folder = order.folder or tempfile.gettempdir()
    try:
        figures, wrong, passes = _measure(order, folder, faults)
    except OSError as error:
        if error.errno not in TELLING:
            raise RefusedError(f"{one_line(folder)}: {error.strerror}") from error
        figures, wrong, passes = {}, [f"{one_line(folder)}: {error.strerror}"], 0
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome="done",
        kind=_kind(folder),
        figures=figures,
        passes=passes,
        wrong=tuple(wrong),
    )


def _measure(order: CheckProgramOrder, folder: str, faults: Faults) -> tuple[dict[str, float], list[str], int]:
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    size_bytes = min(order.size_bytes or USUAL_BYTES, free_bytes // 2, MOST_BYTES)
    if size_bytes < LEAST_BYTES:
        return {}, [f"{one_line(folder)}: only {free_bytes / (1 << 20):.1f} MiB are free"], 0
    rates = {"write_bytes_per_s": Rate(), "read_bytes_per_s": Rate()}
    slowest_sync_s, wrong, pace = 0.0, list[str](), PassCounter(order)
    while pace.more():
        made = _write_and_read(folder, size_bytes, order.seed + pace.made, faults)
        rates["write_bytes_per_s"].add(size_bytes, made.write_s)
        rates["read_bytes_per_s"].add(size_bytes, made.read_s)
        slowest_sync_s = max(slowest_sync_s, made.sync_s)
        if not made.is_same and len(wrong) < 4:
            wrong.append(f"{one_line(folder)}: pass {pace.made} read other bytes than it wrote")
    figures = {"free_bytes": float(free_bytes), "slowest_sync_s": slowest_sync_s}
    for name, rate in rates.items():
        figures |= rate.figures(name)
    return figures, wrong, pace.made


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    write_s: float
    sync_s: float
    read_s: float
    is_same: bool


def _write_and_read(folder: str, size_bytes: int, seed: int, faults: Faults) -> _Times:
    chunk = bytearray(xxhash.xxh3_128_digest(b"", seed=seed) * (CHUNK_BYTES // 16))
    written, read = xxhash.xxh3_128(), xxhash.xxh3_128()
    descriptor = _unnamed(folder)
    try:
        began_s = time.perf_counter()
        for number in range(-(-size_bytes // CHUNK_BYTES)):
            chunk[:8] = number.to_bytes(8, "little")
            part = memoryview(chunk)[: min(size_bytes - number * CHUNK_BYTES, CHUNK_BYTES)]
            written.update(part)
            _write_all(descriptor, part)
        synced_from_s = time.perf_counter()
        os.fsync(descriptor)
        faults.slow_down()
        written_at_s = time.perf_counter()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # so that it is read from the disk
        os.lseek(descriptor, 0, os.SEEK_SET)
        read_from_s = time.perf_counter()
        while count := os.readv(descriptor, [chunk]):
            read.update(memoryview(chunk)[:count])
        read_at_s = time.perf_counter()
    finally:
        os.close(descriptor)
    return _Times(
        write_s=written_at_s - began_s,
        sync_s=written_at_s - synced_from_s,
        read_s=read_at_s - read_from_s,
        is_same=written.digest() == read.digest(),
    )


def _unnamed(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    descriptor, path = tempfile.mkstemp(prefix=".robust-check-", dir=folder)
    os.unlink(path)
    return descriptor


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _kind(folder: str) -> str:
    """Return the type of the file system: rates of different ones are not compared."""
    best, found = "", "unknown file system"
    try:
        real = os.path.realpath(folder)
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                place, kind = line.split()[1:3]
                inside = real == place or real.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, found = place, kind
    except (OSError, ValueError):
        pass
    return one_line(found)


if __name__ == "__main__":
    main("disk", measure)
