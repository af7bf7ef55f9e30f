"""The block map of an image: made by reading it once, kept as JSON beside it, refused if it says what cannot be.

Digests are sha256 cut to 16 bytes: blocks come from peers and shared stores, which are not trusted, and finding a second
block for a 128-bit digest is out of reach. The map itself must come from where the image's name comes from.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.rules.types import BLOCK_BYTES, QUANTUM_BYTES, BlockMap

DIGEST_BYTES = 16
#: Of a sidecar's file: holds the map of a 2.8 TiB image.
LARGEST_MAP_BYTES = 64 << 20
LARGEST_IMAGE_BYTES = 16 << 40
LARGEST_OFFSET_BYTES = 1 << 40
SMALLEST_BLOCK_BYTES = 64 << 10
LARGEST_BLOCK_BYTES = 16 << 20
#: Of a map that is made here: what the kernel reads ahead.
_SMALLEST_MADE_BYTES = QUANTUM_BYTES
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MACHINE = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_SUFFIX = ".blocks.json"


def sidecar(image: str) -> str:
    """Return the path or URL of the block map of an image. What follows '?' in a URL stays at the end."""
    address, mark, query = image.partition("?") if "://" in image else (image, "", "")
    return f"{address}{_SUFFIX}{mark}{query}"


def block_digest(block: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of one block, 16 bytes."""
    return hashlib.sha256(block).digest()[:DIGEST_BYTES]


def digest_of(block_map: BlockMap, index: int) -> bytes:
    """Return what the digest of a block must be."""
    return block_map.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]


def is_good(block_map: BlockMap, index: int, block: bytes | bytearray | memoryview) -> bool:
    """Whether these bytes are that block."""
    return len(block) == block_map.block_size_bytes(index) and block_digest(block) == digest_of(block_map, index)


def identity(block_map: BlockMap) -> str:
    """Return the name of an image's content: 64 hex digits, the same for the same bytes in the same blocks.

    It is a digest of the digests that blocks are judged by, so a map that lies about `sha256` can name no cache but its own.
    """
    head = f"robust-blocks 1 {block_map.size_bytes} {block_map.block_bytes}\n".encode()
    return hashlib.sha256(head + block_map.digests).hexdigest()


def block_bytes_for(size_bytes: int) -> int:
    """Return how large the blocks of a new map are.

    Before the nodes of a job know each other, each reads a few blocks for itself: the beginning, the tables at the end, folders.
    Blocks of eight times the root of the size keep both that and the map, which each node reads as well, a small part of the
    image. Blocks are not what is fetched at once, see `STRETCH_BYTES`. Pure.
    """
    block_bytes = _SMALLEST_MADE_BYTES
    while block_bytes < BLOCK_BYTES and block_bytes * block_bytes < size_bytes * 64:
        block_bytes *= 2
    return block_bytes


def make(
    path: str,
    *,
    offset_bytes: int = 0,
    size_bytes: int | None = None,
    block_bytes: int | None = None,
    mount_at: str | None = None,
    machine: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> BlockMap:
    """Read an image file, or the window of it from an offset on, and return its map. `progress` gets bytes since the last call.

    `block_bytes`: None: `block_bytes_for` its size.

    Raises `BlockMapRefused` where the window is not in the file or has no block; OSError where the file cannot be read.
    """
    whole = hashlib.sha256()
    digests = bytearray()
    with open(path, "rb", buffering=0) as file:
        end = file.seek(0, 2)
        size = end - offset_bytes if size_bytes is None else size_bytes
        if size <= 0 or offset_bytes < 0 or offset_bytes + size > end:
            raise BlockMapRefused(
                f"{path}: it has {end} bytes, so no image of {size} bytes can begin at {offset_bytes}"
            )
        file.seek(offset_bytes)
        block_bytes = block_bytes or block_bytes_for(size)
        buffer = memoryview(bytearray(block_bytes))
        left = size
        while left:
            block = buffer[: min(block_bytes, left)]
            _fill(file.readinto, block, path)
            whole.update(block)
            digests += block_digest(block)
            left -= len(block)
            if progress is not None:
                progress(len(block))
    made = BlockMap(
        size_bytes=size,
        offset_bytes=offset_bytes,
        block_bytes=block_bytes,
        sha256=whole.hexdigest(),
        digests=bytes(digests),
        mount_at=mount_at,
        machine=machine,
    )
    return checked(made, path)


def _fill(readinto: Callable[[memoryview], int | None], buffer: memoryview, path: str) -> None:
    done = 0
    while done < len(buffer):
        got = readinto(buffer[done:])
        if not got:
            raise BlockMapRefused(f"{path}: it was cut short while its block map was made; make it again")
        done += got


def encode(block_map: BlockMap) -> bytes:
    """Return the sidecar's bytes."""
    return msgspec.json.encode(block_map) + b"\n"


def decode(data: bytes, name: str = "block map") -> BlockMap:
    """Return the map in a sidecar's bytes. `name` is for the message.

    Raises `BlockMapRefused` for all that can be wrong with it.
    """
    if len(data) > LARGEST_MAP_BYTES:
        raise BlockMapRefused(f"{name}: {len(data)} bytes; at most {LARGEST_MAP_BYTES} are read")
    try:
        found = json_decoder(BlockMap).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BlockMapRefused(f"{name}: {_one_line(error)}; make it again with `robust image build`") from error
    return checked(found, name)


def checked(block_map: BlockMap, name: str = "block map") -> BlockMap:
    """Return the map as it is. Raises `BlockMapRefused` where it contradicts itself or goes beyond a limit."""
    reason = _what_is_wrong(block_map)
    if reason is not None:
        raise BlockMapRefused(f"{name}: {reason}; make it again with `robust image build`")
    return block_map


def _what_is_wrong(found: BlockMap) -> str | None:
    size = found.block_bytes
    if found.version != 1:
        return f"version {found.version} is not known here, only version 1 is"
    if not SMALLEST_BLOCK_BYTES <= size <= LARGEST_BLOCK_BYTES or size & (size - 1):
        return f"block_bytes is {size}: a power of two from {SMALLEST_BLOCK_BYTES} to {LARGEST_BLOCK_BYTES} is possible"
    if not 0 < found.size_bytes <= LARGEST_IMAGE_BYTES:
        return f"size_bytes is {found.size_bytes}: 1 to {LARGEST_IMAGE_BYTES} is possible"
    if not 0 <= found.offset_bytes <= LARGEST_OFFSET_BYTES:
        return f"offset_bytes is {found.offset_bytes}: 0 to {LARGEST_OFFSET_BYTES} is possible"
    if len(found.digests) != found.blocks * DIGEST_BYTES:
        return (
            f"{found.blocks} blocks need {found.blocks * DIGEST_BYTES} bytes of digests, there are {len(found.digests)}"
        )
    if not _SHA256.fullmatch(found.sha256):
        return "sha256 is not 64 hex digits in lower case"
    if found.mount_at is not None and not is_folder_name(found.mount_at):
        return f"mount_at is {found.mount_at[:80]!r}: an absolute path without '..' is needed"
    if found.machine is not None and not _MACHINE.fullmatch(found.machine):
        return f"machine is {found.machine[:80]!r}: an architecture, as `uname -m` prints it, is needed"
    return None


def is_folder_name(path: str) -> bool:
    """Whether an image can belong at this path."""
    plain = path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path
    return plain and path != "/" and len(path) <= 1024 and path.isprintable()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
