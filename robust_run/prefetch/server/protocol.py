"""The kernel's FUSE protocol, as far as one read-only file needs it. Pure: bytes in, bytes out.

Source: include/uapi/linux/fuse.h (version 7.31 is spoken, which kernels from 5.4 on know). Folder and file are nodes 1 and 2.
"""

from __future__ import annotations

import errno
import stat
import struct
from typing import Final

import msgspec

#: The file's name in the mounted folder.
IMAGE_NAME = "image"
FOLDER_NODE, IMAGE_NODE = 1, 2

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 27, 28, 29, 34, 36, 38, 42
#: No answer is expected to these.
SILENT: Final = frozenset((FORGET, BATCH_FORGET, INTERRUPT))

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHH32x")
_READ_IN = struct.Struct("=QQI")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
#: How long the kernel may keep names and attributes: neither changes while the image is mounted.
_FOREVER_S = 86_400
_ASYNC_READ, _MAX_PAGES = 1 << 0, 1 << 22
_KEEP_CACHE, _NO_FLUSH = 1 << 1, 1 << 5
_MOST_BACKGROUND = 64
#: So the kernel may ask for a block of the default size, 1 MiB, in one request; without it, for 32 pages at most.
_MOST_PAGES = 256
_IMAGE_MODE, _FOLDER_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555


class Request(msgspec.Struct, frozen=True):
    """One request of the kernel."""

    operation: int
    unique: int
    """Names the request in the answer."""
    node: int
    offset_bytes: int = 0
    """Of READ and READDIR."""
    size_bytes: int = 0
    name: bytes = b""
    """Of LOOKUP."""
    minor: int = 0
    """Of INIT: the version of the kernel's protocol."""
    max_readahead_bytes: int = 0
    flags: int = 0


def request(data: memoryview) -> Request | None:
    """Return the request in a slot; None where it is cut short, which a kernel never does."""
    if len(data) < _IN.size:
        return None
    length, operation, unique, node, _uid, _gid, _pid, _extensions, _padding = _IN.unpack_from(data)
    body = data[_IN.size : min(length, len(data))]
    if operation == INIT and len(body) >= _INIT_IN.size:
        _major, minor, readahead, flags = _INIT_IN.unpack_from(body)
        return Request(operation, unique, node, minor=minor, max_readahead_bytes=readahead, flags=flags)
    if operation in (READ, READDIR) and len(body) >= _READ_IN.size:
        _handle, offset, size = _READ_IN.unpack_from(body)
        return Request(operation, unique, node, offset_bytes=offset, size_bytes=size)
    if operation == LOOKUP:
        return Request(operation, unique, node, name=bytes(body[:256]).split(b"\0", 1)[0])
    if operation in (INIT, READ, READDIR):
        return None
    return Request(operation, unique, node)


def head(unique: int, size_bytes: int, error: int = 0) -> bytes:
    """Return the beginning of an answer with so many bytes after it. `error`: an errno, or 0."""
    return _OUT.pack(_OUT.size + size_bytes, -error, unique)


class Answers:
    """Answers to everything but READ of the image."""

    def __init__(self, size_bytes: int, user: int, group: int, max_readahead_bytes: int) -> None:
        """`size_bytes` of the image; `user`, `group`: whom it belongs to."""
        self._size_bytes, self._owner, self._readahead_bytes = size_bytes, (user, group), max_readahead_bytes

    def answer(self, asked: Request) -> tuple[bytes, int]:
        """Return the answer's body and errno."""
        if asked.operation == INIT:
            return self._init(asked), 0
        if asked.operation == LOOKUP:
            if asked.node == FOLDER_NODE and asked.name == IMAGE_NAME.encode():
                return _ENTRY.pack(IMAGE_NODE, 0, _FOREVER_S, _FOREVER_S, 0, 0) + self._attributes(IMAGE_NODE), 0
            return b"", errno.ENOENT
        if asked.operation == GETATTR:
            return struct.pack("=QII", _FOREVER_S, 0, 0) + self._attributes(asked.node), 0
        if asked.operation in (OPEN, OPENDIR):
            return struct.pack("=QII", 0, _KEEP_CACHE | _NO_FLUSH if asked.operation == OPEN else 0, 0), 0
        if asked.operation == READDIR:
            return self._names(asked), 0
        if asked.operation == STATFS:
            blocks = -(-self._size_bytes // 4096)
            return struct.pack("=QQQQQIIII24x", blocks, 0, 0, 1, 0, 4096, 255, 4096, 0), 0
        if asked.operation in (RELEASE, RELEASEDIR, ACCESS, DESTROY):
            return b"", 0
        return b"", errno.ENOSYS  # FLUSH too: the kernel does not ask again, see `handle.start`

    def _init(self, asked: Request) -> bytes:
        readahead = min(asked.max_readahead_bytes, self._readahead_bytes)
        flags = asked.flags & (_ASYNC_READ | _MAX_PAGES)
        minor = min(asked.minor, 31)
        return _INIT_OUT.pack(
            7, minor, readahead, flags, _MOST_BACKGROUND, _MOST_BACKGROUND * 3 // 4, 4096, 1, _MOST_PAGES, 0
        )

    def _attributes(self, node: int) -> bytes:
        is_image = node == IMAGE_NODE
        size = self._size_bytes if is_image else 0
        mode, links = (_IMAGE_MODE, 1) if is_image else (_FOLDER_MODE, 2)
        return _ATTR.pack(node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, links, *self._owner, 0, 4096, 0)

    @staticmethod
    def _names(asked: Request) -> bytes:
        if asked.offset_bytes or asked.node != FOLDER_NODE:
            return b""
        name = IMAGE_NAME.encode()
        return struct.pack("=QQII", IMAGE_NODE, 1, len(name), stat.S_IFREG >> 12) + name.ljust(
            -(-len(name) // 8) * 8, b"\0"
        )
