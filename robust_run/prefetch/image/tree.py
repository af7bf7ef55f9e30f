"""Which files a squashfs holds and where their data lies, read from its metadata. Not a file system: no data is read.

Format 4.0, as the kernel reads it (fs/squashfs/squashfs_fs.h): inodes and directories lie in metadata blocks of at most 8 KiB,
each compressed, addressed by where the block begins and an offset in what it becomes. Everything an image says is checked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.identify import SUPERBLOCK_BYTES, Squashfs, identify, superblock

_METADATA_BYTES = 8192
_NO_FRAGMENT = 0xFFFFFFFF
_UNCOMPRESSED = 1 << 24
#: More than any image of an environment has; each costs about 200 bytes of memory.
MOST_FILES = 20_000_000
_DIRECTORY, _FILE, _LONG_DIRECTORY, _LONG_FILE = 1, 2, 8, 9
_DEEPEST = 512
_MOST_BLOCKS = 1 << 26


@dataclass(frozen=True)
class PackedFile:
    """A file's data in an image. A small file may be a part of a fragment that it shares with others."""

    path: str
    """From the image's root, without a leading slash."""
    offset_bytes: int
    """Where in the image its data begins."""
    size_bytes: int
    """How much of the image it takes, compressed."""


def packed_files(path: str) -> Iterator[PackedFile]:
    """Yield the regular files of an image file, squashfs or SIF, that have data. Raises `ImageRefused` and OSError."""
    found = identify(path)
    if found.squashfs is None:
        raise ImageRefused(f"{path}: a {found.kind}, not an image file")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from files_of(
            lambda at, count: os.pread(descriptor, count, found.offset_bytes + at), found.size_bytes, path
        )
    finally:
        os.close(descriptor)


def files_of(read: Callable[[int, int], bytes], size_bytes: int, name: str) -> Iterator[PackedFile]:
    """As `packed_files`, for an image that is read through `read(offset_bytes, count)`. Raises `ImageRefused`."""
    head = superblock(read(0, SUPERBLOCK_BYTES), size_bytes, name)
    tree = _Tree(read, head, name)
    try:
        yield from tree.walk()
    except (struct.error, ValueError, IndexError, MemoryError, OverflowError) as error:
        raise ImageRefused(f"{name}: its directory is damaged: {' '.join(str(error).split())[:200]}") from error


class _Tree:
    def __init__(self, read: Callable[[int, int], bytes], head: Squashfs, name: str) -> None:
        self._head, self._name = head, name
        self._metadata = _Metadata(read, head)
        self._read = read
        self._seen: set[int] = set()
        self._count = 0

    def walk(self) -> Iterator[PackedFile]:
        waiting: list[tuple[str, int, int]] = [("", self._head.root_inode, 0)]
        while waiting:
            path, reference, depth = waiting.pop()
            if reference in self._seen:
                continue  # a second name of a file, or an image that contains itself
            self._seen.add(reference)
            self._count += 1
            if self._count > MOST_FILES or depth > _DEEPEST or self._count > 2 * self._head.inodes + 2:
                raise ValueError(f"it has more entries than its {self._head.inodes} inodes")
            stream = self._metadata.stream(self._head.inode_table, reference >> 16, reference & 0xFFFF)
            kind = struct.unpack("<HHHHII", stream.take(16))[0]
            if kind in (_DIRECTORY, _LONG_DIRECTORY):
                for name, child in self._entries(kind, stream):
                    waiting.append((f"{path}/{name}" if path else name, child, depth + 1))
            elif kind in (_FILE, _LONG_FILE):
                found = self._file(kind, stream, path)
                if found is not None:
                    yield found

    def _entries(self, kind: int, inode: _Stream) -> Iterator[tuple[str, int]]:
        if kind == _DIRECTORY:
            block, _links, size, offset, _parent = struct.unpack("<IIHHI", inode.take(16))
        else:
            _links, size, block, _parent, _indexes, offset, _xattr = struct.unpack("<IIIIHHI", inode.take(24))
        left = size - 3  # "." and ".." are counted and not stored
        stream = self._metadata.stream(self._head.directory_table, block, offset)
        while left > 0:
            count, start, _number = struct.unpack("<III", stream.take(12))
            left -= 12
            if count >= 256:
                raise ValueError(f"a folder's header counts {count + 1} entries")
            for _entry in range(count + 1):
                within, _delta, _kind, length = struct.unpack("<HhHH", stream.take(8))
                if length >= 256:
                    raise ValueError(f"a name of {length + 1} bytes")
                name = stream.take(length + 1).decode("utf-8", "surrogateescape")
                left -= 8 + length + 1
                if "/" in name or "\0" in name or name in (".", ".."):
                    raise ValueError(f"a file is named {name!r}")
                yield name, start << 16 | within

    def _file(self, kind: int, inode: _Stream, path: str) -> PackedFile | None:
        if kind == _FILE:
            start, fragment, _offset, size = struct.unpack("<IIII", inode.take(16))
        else:
            start, size, _sparse, _links, fragment, _offset, _xattr = struct.unpack("<QQQIIII", inode.take(40))
        blocks = size // self._head.block_bytes if fragment != _NO_FRAGMENT else -(-size // self._head.block_bytes)
        if blocks > _MOST_BLOCKS:
            raise ValueError(f"{path!r} would have {size} bytes")
        stored = 0
        for _piece in range(0, blocks, 1024):
            count = min(1024, blocks - _piece)
            stored += sum(length & (_UNCOMPRESSED - 1) for length in struct.unpack(f"<{count}I", inode.take(4 * count)))
        if not stored and fragment != _NO_FRAGMENT:
            start, stored = self._fragment(fragment)
        if not stored:
            return None
        if start + stored > self._head.bytes_used:
            raise ValueError(f"{path!r} lies outside of the image")
        return PackedFile(path, start, stored)

    def _fragment(self, index: int) -> tuple[int, int]:
        if index >= self._head.fragments:
            raise ValueError(f"fragment {index} of {self._head.fragments}")
        at = self._head.fragment_table + index * 16 // _METADATA_BYTES * 8
        (block,) = struct.unpack("<Q", self._read(at, 8))
        stream = self._metadata.stream(0, block, index * 16 % _METADATA_BYTES)
        start, length, _unused = struct.unpack("<QII", stream.take(16))
        return start, length & (_UNCOMPRESSED - 1)


class _Metadata:
    """Metadata blocks, decompressed once each while they are in use."""

    def __init__(self, read: Callable[[int, int], bytes], head: Squashfs) -> None:
        self._read, self._head = read, head
        self._decompress = _decompressor(head.compression)
        self._blocks: dict[int, tuple[bytes, int]] = {}

    def stream(self, table: int, block: int, offset: int) -> _Stream:
        return _Stream(self, table + block, offset)

    def block(self, at: int) -> tuple[bytes, int]:
        """Return what a block holds and where the next begins."""
        found = self._blocks.get(at)
        if found is None:
            if not SUPERBLOCK_BYTES <= at < self._head.bytes_used:
                raise ValueError(f"a metadata block at {at}")
            (head,) = struct.unpack("<H", self._read(at, 2))
            length = head & 0x7FFF
            data = self._read(at + 2, length)
            if not 0 < length <= _METADATA_BYTES or len(data) != length:
                raise ValueError(f"a metadata block of {length} bytes at {at}")
            if not head & 0x8000:
                try:
                    data = self._decompress(data)
                except Exception as error:  # each library has errors of its own
                    raise ValueError(f"a metadata block at {at}: {error}") from error
            if len(self._blocks) > 4096:
                self._blocks.clear()
            found = self._blocks[at] = (data, at + 2 + length)
        return found


class _Stream:
    """Bytes that go on from one metadata block to the next."""

    def __init__(self, metadata: _Metadata, at: int, offset: int) -> None:
        self._metadata, self._at, self._offset = metadata, at, offset

    def take(self, count: int) -> bytes:
        pieces = []
        while count:
            data, following = self._metadata.block(self._at)
            piece = data[self._offset : self._offset + count]
            if not piece:
                if self._offset > len(data) or not data:
                    raise ValueError(f"offset {self._offset} in a metadata block of {len(data)} bytes")
                self._at, self._offset = following, 0
                continue
            pieces.append(piece)
            self._offset += len(piece)
            count -= len(piece)
        return b"".join(pieces)


def _decompressor(compression: str) -> Callable[[bytes], bytes]:
    """Return what makes a metadata block of its compressed bytes; never more than `_METADATA_BYTES`."""
    if compression == "gzip":
        import zlib

        return lambda data: zlib.decompressobj().decompress(data, _METADATA_BYTES)
    if compression == "xz":
        import lzma

        return lambda data: lzma.LZMADecompressor(memlimit=128 << 20).decompress(data, _METADATA_BYTES)
    if compression == "lz4":
        import lz4.block  # type: ignore[import-untyped]

        return lambda data: bytes(lz4.block.decompress(data, uncompressed_size=_METADATA_BYTES))
    if compression == "zstd":
        import zstandard

        engine = zstandard.ZstdDecompressor(max_window_size=1 << 20)
        return lambda data: engine.stream_reader(data).read(_METADATA_BYTES)
    raise ImageRefused(f"compression {compression}: its files cannot be listed here; build the image again with zstd")
