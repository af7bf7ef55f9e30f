"""Where fetched blocks lie: a sparse file per image, shared by all servers and jobs of a user on a node.

    <root>/<identity of the image>/image    the bytes, at their place; holes where a block is not there
                                   have     64 bytes of head, then one byte per block
                                   map.json the block map, for people and `prune`
                                   in_use   locked (shared) by whoever uses the folder
                                   setup    locked (alone) while the files are opened or made

A block's byte is set after its data was written, with one write of one byte, so neither servers that are killed nor servers that
write at the same time can make it lie: they would write the same verified bytes. A crash of the machine can, because the file
system may have kept the byte and lost the data: the head holds the boot, and after another boot each block is verified once more
before it is trusted. The root must be on a disk of this node.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import CacheRefused
from robust_run.prefetch.types import BlockMap

_HEAD = struct.Struct("<8sQ36s12x")
_MAGIC = b"RRHAVE1\n"
_ABSENT, _GOOD, _CLAIMED = 0, 1, 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def this_boot() -> bytes:
    """Return the kernel's identifier of this boot, 36 bytes."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read(36).ljust(36)


class Cache:
    """The blocks of one image. Safe to use from threads, and together with other processes."""

    def __init__(self, root: str, block_map: BlockMap, *, boot: bytes | None = None) -> None:
        """Open or make the folder of an image. `boot` is for tests.

        Raises `CacheRefused` where it is not ours, or cannot be made or written.
        """
        self.block_map = block_map
        self.folder = os.path.join(os.path.abspath(root), blockmap.identity(block_map))
        self._known = bytearray(block_map.blocks)
        self._descriptors: list[int] = []
        try:
            self._use_folder()
            setup = _open_own(os.path.join(self.folder, "setup"))
            try:
                fcntl.flock(setup, fcntl.LOCK_EX)
                self._image, self._have = self._open_files(boot or this_boot())
            finally:
                os.close(setup)
            os.utime(self._have)  # `pruning` goes by it
        except OSError as error:
            self.close()
            raise CacheRefused(
                f"{self.folder}: {error.strerror or error}: blocks cannot be kept there, name another --image-cache folder"
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
            _check_folder(self.folder)
            path = os.path.join(self.folder, "in_use")
            lock = _open_own(path)
            fcntl.flock(lock, fcntl.LOCK_SH)
            try:
                if os.path.samestat(os.fstat(lock), os.lstat(path)):
                    self._descriptors.append(lock)
                    return
            except FileNotFoundError:
                pass
            os.close(lock)

    def _keep(self, path: str) -> int:
        descriptor = _open_own(path)
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
            _write_map(self.folder, self.block_map)
            os.pwrite(have, _HEAD.pack(_MAGIC, self.block_map.blocks, boot), 0)
        elif _HEAD.unpack(head)[2] != boot:
            states = os.pread(have, self.block_map.blocks, _HEAD.size)
            os.pwrite(have, states.replace(b"\x01", b"\x02"), _HEAD.size)
            os.pwrite(have, _HEAD.pack(_MAGIC, self.block_map.blocks, boot), 0)
        return image, have

    def have(self, index: int) -> bool:
        """Whether a block is there. One that is from before the last boot is read and verified first."""
        if self._known[index]:
            return True
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
        size = self.block_map.block_size_bytes(index)
        data = os.pread(self._image, size, index * self.block_map.block_bytes)
        state = bytes((_GOOD if blockmap.is_good(self.block_map, index, data) else _ABSENT,))
        os.pwrite(self._have, state, _HEAD.size + index)
        return state

    def scan(self) -> bytearray:
        """Return one byte per block, 1 where it is there and trusted. Cheap, for a first look and for counting."""
        try:
            states = os.pread(self._have, self.block_map.blocks, _HEAD.size)
        except OSError:
            states = b""
        return bytearray(states.replace(b"\x02", b"\x00").ljust(self.block_map.blocks, b"\0"))

    def present(self) -> int:
        """How many blocks are there."""
        return self.scan().count(_GOOD)

    @property
    def complete(self) -> bool:
        """Whether the image is whole: it can then be mounted from `path` without a server."""
        return self.present() == self.block_map.blocks

    def put(self, index: int, block: bytes | bytearray | memoryview) -> bool:
        """Keep a block that is verified already. False where the disk is full or fails: nothing is kept then."""
        try:
            _write_all(self._image, block, index * self.block_map.block_bytes)
            os.pwrite(self._have, b"\x01", _HEAD.size + index)
        except OSError:
            return False
        self._known[index] = 1
        return True

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Return bytes of blocks that are there. Raises OSError as `os.pread` does."""
        return os.pread(self._image, size_bytes, offset_bytes)

    def forget(self, index: int) -> None:
        """Take a block for absent: reading it failed, or it was found to be wrong."""
        self._known[index] = 0
        try:
            os.pwrite(self._have, b"\0", _HEAD.size + index)
        except OSError:
            return  # then it is read again, and found to be wrong again

    def verify(self) -> list[int]:
        """Read all blocks that are there, forget those that are wrong, and return them. Takes seconds per GiB."""
        wrong = []
        for index, state in enumerate(self.scan()):
            if state == _GOOD and self._judge(index) != b"\x01":
                self._known[index] = 0
                wrong.append(index)
        return wrong

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


def is_full(error: OSError) -> bool:
    """Whether an error says that a disk or a quota is full."""
    return error.errno in _FULL


def _open_own(path: str) -> int:
    """Open a plain file of ours for reading and writing; a link, a device or somebody else's file is refused."""
    descriptor = os.open(path, _FILE_FLAGS, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise CacheRefused(f"{path}: it is not a plain file of ours: remove it, or name another --image-cache folder")
    return descriptor


def _check_folder(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CacheRefused(f"{path}: it is not a folder that only we can write: name another --image-cache folder")


def _write_map(folder: str, block_map: BlockMap) -> None:
    descriptor = _open_own(os.path.join(folder, "map.json"))
    try:
        os.ftruncate(descriptor, 0)
        _write_all(descriptor, blockmap.encode(block_map), 0)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset_bytes)
        left, offset_bytes = left[done:], offset_bytes + done
