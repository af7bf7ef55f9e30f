"""Where fetched blocks lie: a sparse file per image, shared by all servers and jobs of a user on a node.

    <root>/<identity of the image>/image    the bytes, at their place; holes where a block is not there
                                   have     64 bytes of head, then one byte per block
                                   sums     what the bytes must be; see `sums`
                                   map.json the block map, for people and `prune`
                                   in_use   locked (shared) by each process that uses the folder
                                   setup    locked (alone) while the files are opened or made

A block's byte is set after its data was written, with one write of one byte, so neither servers that are killed nor servers that
write at the same time can make it lie: they would write the same verified bytes. A crash of the machine can, because the file
system may have kept the byte and lost the data: the head holds the boot, and after another boot each block is verified once more
before it is trusted. The root must be on a disk of this node.

**Invariant:** no byte is read from it that was not verified after it was read from the disk: what lies in a file for weeks may
have changed since it was written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterable

from robust_run.prefetch import blockmap, cache_files
from robust_run.prefetch.cache_files import PIECE_BYTES, Sums, check_folder, open_own, this_boot, write_map
from robust_run.prefetch.errors import CacheRefused
from robust_run.prefetch.rules.types import BlockMap
from robust_run.store.buffers import write_at

_HEAD = struct.Struct("<8sQ36s12x")
_MAGIC = b"RRHAVE1\n"
_ABSENT, _GOOD, _CLAIMED = 0, 1, 2
_ONLY_GOOD = bytes(state == _GOOD for state in range(256))


def _free(root: str, error: OSError) -> str:
    """Return how full a disk is that took not even the lists of a cache, as a clause."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    with contextlib.suppress(OSError):
        disk = os.statvfs(root)
        free_mib, all_mib = (blocks * disk.f_frsize >> 20 for blocks in (disk.f_bavail, disk.f_blocks))
        return f" ({free_mib} of {all_mib} MiB and {disk.f_favail} of {disk.f_files} inodes are free)"
    return ""


class BlocksWrongError(Exception):
    """Blocks that are said to be there are not what they must be."""

    def __init__(self, blocks: Iterable[int]) -> None:
        """`blocks`: at least one."""
        self.blocks = tuple(blocks)
        super().__init__(f"blocks {self.blocks}")


class Cache:
    """The blocks of one image. Safe to use from threads, and together with other processes."""

    def __init__(self, root: str, block_map: BlockMap, *, boot: bytes | None = None) -> None:
        """Open or make the folder of an image. `boot` is for tests.

        Raises `CacheRefused` where it is not ours, or cannot be made or written.
        """
        self.block_map = block_map
        self.folder = os.path.join(os.path.abspath(root), blockmap.identity(block_map))
        self.failure = ""
        """Why a block could not be kept, the last time."""
        self._known = bytearray(block_map.blocks)
        self._lost: set[int] = set()
        """Wrong blocks that cannot be marked as such, because the disk does not take it."""
        self._descriptors: list[int] = []
        try:
            self._use_folder()
            setup = open_own(os.path.join(self.folder, "setup"))
            try:
                fcntl.flock(setup, fcntl.LOCK_EX)
                self._image, self._have = self._open_files(boot or this_boot())
                self._sums = Sums(self._open_sums())
            finally:
                os.close(setup)
            os.utime(self._have)  # `pruning` goes by it
        except OSError as error:
            self.close()
            raise CacheRefused(
                f"{self.folder}: {error.strerror or error}{_free(root, error)}: "
                "blocks cannot be kept there, name another --image-cache folder"
            ) from error
        except CacheRefused:
            self.close()
            raise

    @property
    def path(self) -> str:
        """The image file: whole once `complete`, with holes before."""
        return os.path.join(self.folder, "image")

    def close(self) -> None:
        """Let go of the folder; it may be pruned then."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _use_folder(self) -> None:
        """Make the folder and lock it against `pruning`; again where it was removed in between."""
        while True:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            check_folder(self.folder)
            path = os.path.join(self.folder, "in_use")
            lock = open_own(path)
            fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                if os.path.samestat(os.fstat(lock), os.lstat(path)):
                    self._descriptors.append(lock)
                    return
            except FileNotFoundError:
                pass
            os.close(lock)

    def _keep(self, path: str) -> int:
        descriptor = open_own(path)
        self._descriptors.append(descriptor)
        return descriptor

    def _open_files(self, boot: bytes) -> tuple[int, int]:
        """Open image and have; files that do not fit the map are put aside for new ones, never changed under other users."""
        paths = [os.path.join(self.folder, name) for name in ("image", "have")]
        wanted = (self.block_map.size_bytes, _HEAD.size + self.block_map.blocks)
        image, have = (self._keep(path) for path in paths)
        sound = (os.fstat(image).st_size, os.fstat(have).st_size) == wanted
        head = os.pread(have, _HEAD.size, 0)
        if not sound or _HEAD.unpack(head)[:2] != (_MAGIC, self.block_map.blocks):
            for path in paths:
                os.unlink(path)
            image, have = (self._keep(path) for path in paths)
            os.ftruncate(image, wanted[0])
            os.ftruncate(have, wanted[1])
            os.pwrite(have, bytes(self.block_map.blocks), _HEAD.size)
            write_map(self.folder, self.block_map)
            os.pwrite(have, _HEAD.pack(_MAGIC, self.block_map.blocks, boot), 0)
        elif _HEAD.unpack(head)[2] != boot:
            states = os.pread(have, self.block_map.blocks, _HEAD.size)
            os.pwrite(have, states.replace(b"\x01", b"\x02"), _HEAD.size)
            os.pwrite(have, _HEAD.pack(_MAGIC, self.block_map.blocks, boot), 0)
        return image, have

    def _open_sums(self) -> int:
        """Open the sums; a file of another length has none that count."""
        opened = self._keep(os.path.join(self.folder, "sums"))
        wanted = cache_files.sums_bytes(self.block_map.size_bytes)
        if os.fstat(opened).st_size != wanted:
            os.ftruncate(opened, 0)
            os.ftruncate(opened, wanted)
        return opened

    def have(self, index: int) -> bool:
        """Whether a block is there, as far as is known without reading it. One from before the last boot is verified first."""
        if self._known[index]:
            return True
        if index in self._lost:
            return False
        try:
            state = os.pread(self._have, 1, _HEAD.size + index)
            if state == b"\x02":
                state = self._judge(index)
        except OSError:
            return False
        if state == b"\x01":
            self._known[index] = 1
            return True
        return False

    def _judge(self, index: int) -> bytes:
        state = bytes((_GOOD if self._right_block(index) is not None else _ABSENT,))
        os.pwrite(self._have, state, _HEAD.size + index)
        return state

    def _right_block(self, index: int, *, by_map: bool = False) -> bytes | None:
        """Return a block's bytes; None where they are wrong. Sums that are not there are made up for. Raises OSError.

        `by_map`: hold it against the block map even if its sums are right.
        """
        begin = index * self.block_map.block_bytes
        data = os.pread(self._image, self.block_map.block_size_bytes(index), begin)
        if not by_map and len(data) == self.block_map.block_size_bytes(index) and self._sums.hold(begin, data):
            return data
        if not blockmap.is_good(self.block_map, index, data):
            return None
        with contextlib.suppress(OSError):  # then it is looked at in the same way next time
            self._sums.note(begin, data)
        return data

    def scan(self) -> bytearray:
        """Return one byte per block, 1 where it is there and trusted. Cheap, for a first look and for counting."""
        try:
            states = os.pread(self._have, self.block_map.blocks, _HEAD.size)
        except OSError:
            states = b""
        return bytearray(states.translate(_ONLY_GOOD).ljust(self.block_map.blocks, b"\0"))

    def present(self) -> int:
        """How many blocks are there."""
        return self.scan().count(_GOOD)

    @property
    def complete(self) -> bool:
        """Whether all blocks are there."""
        return self.present() == self.block_map.blocks

    def put(self, index: int, block: bytes | bytearray | memoryview) -> bool:
        """Keep a block that is verified already. False where the disk is full or fails (see `failure`): nothing is kept then."""
        begin = index * self.block_map.block_bytes
        try:
            write_at(self._image, block, begin)
            self._sums.note(begin, block)
            os.pwrite(self._have, b"\x01", _HEAD.size + index)
        except OSError as error:
            self.failure = error.strerror or str(error)
            return False
        self._lost.discard(index)
        self._known[index] = 1
        return True

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Return bytes of blocks that are there, verified. Raises `BlocksWrongError`, and OSError as `os.pread` does."""
        if not size_bytes:
            return b""
        begin = offset_bytes // PIECE_BYTES * PIECE_BYTES
        end = min(-(-(offset_bytes + size_bytes) // PIECE_BYTES) * PIECE_BYTES, self.block_map.size_bytes)
        data = os.pread(self._image, end - begin, begin)
        if len(data) != end - begin or not self._sums.hold(begin, data):
            begin, data = self._read_blocks(offset_bytes, size_bytes)
        return data[offset_bytes - begin : offset_bytes - begin + size_bytes]

    def _read_blocks(self, offset_bytes: int, size_bytes: int) -> tuple[int, bytes]:
        """Return where the blocks of a stretch begin, and all their bytes."""
        size = self.block_map.block_bytes
        blocks = range(offset_bytes // size, -(-(offset_bytes + size_bytes) // size))
        found = [self._right_block(index) for index in blocks]
        right = [data for data in found if data is not None]
        if len(right) < len(found):
            raise BlocksWrongError(index for index, data in zip(blocks, found, strict=True) if data is None)
        return blocks[0] * size, b"".join(right)

    def forget(self, index: int) -> None:
        """Take a block for absent: reading it failed, or it was found to be wrong."""
        self._known[index] = 0
        try:
            os.pwrite(self._have, b"\0", _HEAD.size + index)
        except OSError:
            self._lost.add(index)

    def verify(self) -> list[int]:
        """Hold all blocks that are there against the map, forget those that are wrong, and return them. Takes seconds per GiB."""
        return self._sift(range(self.block_map.blocks), by_map=True)

    def sift(self, blocks: Iterable[int] | None = None) -> list[int]:
        """As `verify`, but by sums where there are any: it takes as long as to read. `blocks`: which to look at; None: all."""
        return self._sift(range(self.block_map.blocks) if blocks is None else blocks, by_map=False)

    def _sift(self, blocks: Iterable[int], *, by_map: bool) -> list[int]:
        states = self.scan()
        wrong = []
        for index in blocks:
            if states[index] == _GOOD and not self.is_right(index, by_map=by_map):
                self.forget(index)
                wrong.append(index)
        return wrong

    def is_right(self, index: int, *, by_map: bool = False) -> bool:
        """Whether a block's bytes are what they must be; see `sift`."""
        try:
            return self._right_block(index, by_map=by_map) is not None
        except OSError:
            return False  # a part of the disk that cannot be read any more

    def free_bytes(self) -> int:
        """Return how much more we may write on the disk."""
        found = os.fstatvfs(self._image)
        return found.f_bavail * found.f_frsize

    def claim(self, start: int, count: int) -> bool:
        """Try to be the one process on this node that fetches these blocks. Held until `release`, or until we die."""
        try:
            fcntl.lockf(self._have, fcntl.LOCK_EX | fcntl.LOCK_NB, count, _HEAD.size + start)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)  # where locks do not work, all may fetch
        return True

    def release(self, start: int, count: int) -> None:
        """Give up a claim."""
        try:
            fcntl.lockf(self._have, fcntl.LOCK_UN, count, _HEAD.size + start)
        except OSError:
            return  # without locks there was no claim
