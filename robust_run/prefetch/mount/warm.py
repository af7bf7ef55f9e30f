"""An image that others have mounted already (Apptainer, pyxis): its file's hot bytes are read ahead, past the mount.

Never through the mount: the kernel's squashfs reads one block after the other, so prefetching through it was slower than no
prefetching. What a loop device or squashfuse reads of the file comes from the same page cache. What a start reads is seen there
too, by mincore(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from robust_run.prefetch.errors import ImageError
from robust_run.prefetch.rules.types import QUANTUM_BYTES, BlockMap, BlockRun, Touch

WIDTH = 32
_PIECE_BYTES = 4 << 20
#: Of each thread: a start must not cost memory that the program misses.
_BUFFER_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 30
_POLL_EVERY_S = 0.25
_PROT_READ, _MAP_SHARED = 1, 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class CannotWatch(ImageError):  # noqa: N818 - a state of the world, named as such
    """The kernel does not tell us which pages of this file are in memory."""


def mounted_image(env: Mapping[str, str], image: str | None) -> str | None:
    """Return where the image of this job is mounted already: "/" in a container that was made of it, else None.

    Apptainer and Singularity tell the image's path; pyxis and enroot tell nothing.
    """
    container = env.get("APPTAINER_CONTAINER") or env.get("SINGULARITY_CONTAINER")
    if image is None or not container or "://" in image:
        return None
    return "/" if os.path.realpath(container) == os.path.realpath(image) else None


def pieces(runs: Iterable[BlockRun], block_map: BlockMap) -> list[tuple[int, int]]:
    """Return (offset, length) in the image's file for runs of its blocks, in their order, none longer than 4 MiB. Pure."""
    found = []
    for run in runs:
        at = run.start * block_map.block_bytes
        end = min((run.start + run.count) * block_map.block_bytes, block_map.size_bytes)
        while at < end:
            length = min(_PIECE_BYTES, end - at)
            found.append((block_map.offset_bytes + at, length))
            at += length
    return found


def warm(
    path: str, runs: Iterable[BlockRun], block_map: BlockMap, *, width: int = WIDTH, stop: threading.Event | None = None
) -> int:
    """Read runs of blocks of an image's file into the page cache, many at once, and return how many bytes came.

    Reading, and not posix_fadvise: network file systems ignore its advice. Raises OSError where the file cannot be opened.
    """
    return _read_all([(path, offset, length) for offset, length in pieces(runs, block_map)], width, stop)


def read_files(paths: Iterable[tuple[str, int]], *, width: int = WIDTH, stop: threading.Event | None = None) -> int:
    """Read the beginnings of files, so many bytes of each, into the page cache. Files that cannot be read are passed over."""
    return _read_all([(path, 0, length) for path, length in paths], width, stop)


def _read_all(wanted: list[tuple[str, int, int]], width: int, stop: threading.Event | None) -> int:
    work = deque(wanted)
    large = any(length > _PIECE_BYTES for _path, _at, length in wanted)
    counts = [0] * (width if large else max(1, min(width, len(wanted))))

    def within(place: int) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while stop is None or not stop.is_set():
            try:
                path, offset, length = work.popleft()
            except IndexError:
                return
            if length > _PIECE_BYTES:
                first, *others = _cut(path, offset, length)
                work.extendleft(reversed(others))  # many threads read what is large, and in its turn
                path, offset, length = first
            counts[place] += _read(path, offset, length, buffer)

    threads = [threading.Thread(target=within, args=(place,), daemon=True) for place in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _cut(path: str, offset: int, length: int) -> list[tuple[str, int, int]]:
    """Cut a piece of a file, as far as there is one, into such as one read takes. At least one is returned."""
    try:
        end = min(offset + length, os.stat(path).st_size)
    except OSError:
        end = offset
    return [(path, at, min(_PIECE_BYTES, end - at)) for at in range(offset, max(end, offset + 1), _PIECE_BYTES)]


def _read(path: str, offset: int, length: int, buffer: memoryview) -> int:
    """Read a piece and return how many bytes came; none for what is no file or cannot be read: a later read says why."""
    done = 0
    try:
        # Not blocking: a name that became a pipe would hold us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return 0
            while done < length:
                count = os.preadv(descriptor, [buffer[: min(length - done, len(buffer))]], offset + done)
                if not count:
                    break
                done += count
        finally:
            os.close(descriptor)
    except OSError:
        return done
    return done


def resident(path: str, block_map: BlockMap) -> set[int]:
    """Return the quanta of an image of which a page is in memory.

    Raises `CannotWatch` for a file that is neither ours nor writable by us: of such the kernel says that all of it is in memory.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotWatch(f"{path}: {error.strerror}") from error
    try:
        if os.fstat(descriptor).st_uid != os.geteuid() and not os.access(path, os.W_OK):
            raise CannotWatch(
                f"{path}: only its owner can see what is read of it; record with robust-run's own mount instead"
            )
        found: set[int] = set()
        first = block_map.offset_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(block_map.offset_bytes + block_map.size_bytes, os.fstat(descriptor).st_size)
        for start in range(first, end, _WINDOW_BYTES):
            pages = _pages(descriptor, start, min(_WINDOW_BYTES, end - start), path)
            for page in (index for index, state in enumerate(pages) if state & 1):
                found.add(max(0, start + page * mmap.PAGESIZE - block_map.offset_bytes) // QUANTUM_BYTES)
        return found
    finally:
        os.close(descriptor)


def _pages(descriptor: int, start: int, length: int, path: str) -> bytes:
    address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, descriptor, start)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise CannotWatch(f"{path}: {os.strerror(ctypes.get_errno())}")
    try:
        states = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _libc.mincore(address, length, states):
            raise CannotWatch(f"{path}: {os.strerror(ctypes.get_errno())}")
        return states.raw
    finally:
        _libc.munmap(address, length)


class PageCacheWatch:
    """Sees which quanta of an image come into memory, and when, from `start` until `stop`."""

    def __init__(
        self,
        look: Callable[[], set[int]],
        *,
        every_s: float = _POLL_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look`: `resident` for an image."""
        self._look, self._every_s, self._clock = look, every_s, clock
        self._stopping = threading.Event()
        self._first_ms: dict[int, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before: frozenset[int] = frozenset()
        """What was in memory already. Where that is much, the record is not one of a cold start, and should not be merged."""

    def start(self) -> None:
        """Look once and then now and then. Raises `CannotWatch`."""
        self.before = frozenset(self._look())
        self._began_s = self._clock()
        self._thread.start()

    def stop(self) -> list[Touch]:
        """Look a last time and return what came since the start, by quantum."""
        self._stopping.set()
        self._thread.join()
        return [Touch(quantum, self._first_ms[quantum]) for quantum in sorted(self._first_ms)]

    def _watch(self) -> None:
        over = False
        while not over:
            over = self._stopping.wait(self._every_s)
            now_ms = int((self._clock() - self._began_s) * 1e3)
            try:
                for quantum in self._look() - self.before:
                    self._first_ms.setdefault(quantum, now_ms)
            except ImageError:
                return  # the file is gone: what was seen stays
