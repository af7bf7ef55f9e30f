"""What kind of image something is, and where in its file the squashfs lies: pure functions of a few bytes, and a thin reader.

squashfs: the superblock of format 4.0 (kernel, Documentation/filesystems/squashfs.rst). SIF: the container file of Apptainer and
Singularity: a header of 128 bytes, a table of descriptors of 585 bytes each, and data objects, one of which is the primary
partition. Only a squashfs partition can be served by blocks.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from typing import Literal

from robust_run.prefetch.errors import ImageRefused

Kind = Literal["squashfs", "sif", "oci", "directory"]

SUPERBLOCK_BYTES = 96
_SUPERBLOCK = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_SQUASHFS_MAGIC = 0x73717368
_COMPRESSIONS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_NO_TABLE = (1 << 64) - 1

SIF_HEADER_BYTES = 128
_SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")
_SIF_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_SIF_MAGIC = b"SIF_MAGIC\0"
_SIF_PARTITION, _SIF_SQUASHFS, _SIF_PRIMARY = 0x4004, 1, 2
_SIF_FILE_SYSTEMS = {1: "squashfs", 2: "ext3", 3: "an archive", 4: "raw data", 5: "encrypted squashfs"}
_SIF_MACHINES = {
    b"01": "i386",
    b"02": "x86_64",
    b"03": "arm",
    b"04": "aarch64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"11": "s390x",
}
#: Of ustar, pax and GNU tars alike.
_TAR_MAGIC, _TAR_MAGIC_AT, TAR_HEAD_BYTES = b"ustar", 257, 512
_DIR_TRANSPORT = b"Directory Transport Version"
_CONVERT = (
    "make an OCI layout of it with `skopeo copy {kind}:{path} oci:FOLDER`{or_else}, and an image of that with"
    " `robust image build FOLDER`"
)
#: Of a SIF's table. Apptainer makes 48.
MOST_DESCRIPTORS = 4096


@dataclass(frozen=True)
class Squashfs:
    """What a squashfs superblock says."""

    bytes_used: int
    """Length of the file system; its file may be padded to 4 KiB beyond it."""
    block_bytes: int
    """Of the file data in it, uncompressed; nothing to do with the blocks of a block map."""
    compression: str
    inodes: int
    root_inode: int
    """Where the root's inode is: start of its metadata block << 16 | offset in it, counted from `inode_table`."""
    fragments: int
    inode_table: int
    """Offset in bytes from the beginning of the image; so are the next ones."""
    directory_table: int
    fragment_table: int
    """2^64 - 1: there is none."""


@dataclass(frozen=True)
class Identified:
    """What a path is."""

    kind: Kind
    offset_bytes: int = 0
    """Where in the file the squashfs begins."""
    size_bytes: int = 0
    """How much of the file belongs to it, padding included; 0 for folders."""
    squashfs: Squashfs | None = None
    machine: str | None = None
    """Architecture, as `uname -m` says it; None: the format does not tell."""


def superblock(data: bytes, size_bytes: int, name: str) -> Squashfs:
    """Return what the first `SUPERBLOCK_BYTES` of a squashfs say. `size_bytes`: how many there are; `name` is for the message.

    Raises `ImageRefused` where they are not a superblock, or one that contradicts itself or the file.
    """
    if len(data) < SUPERBLOCK_BYTES:
        raise ImageRefused(f"{name}: {len(data)} bytes are too few for a squashfs; was the file copied whole?")
    fields = _SUPERBLOCK.unpack_from(data)
    magic, inodes, _time, block_bytes, fragments, compression, log, _flags, _ids, major, minor = fields[:11]
    root, used, ids, _xattrs, inode_table, directory_table, fragment_table, _exports = fields[11:]
    if magic != _SQUASHFS_MAGIC:
        raise ImageRefused(f"{name}: no squashfs begins here (magic {magic:#x}); make one with `robust image build`")
    if (major, minor) != (4, 0):
        raise ImageRefused(
            f"{name}: squashfs {major}.{minor}; only 4.0 can be mounted: make it again with mksquashfs 4"
        )
    wrong = None
    if not 12 <= log <= 20 or block_bytes != 1 << log:
        wrong = f"its blocks have {block_bytes} bytes and 2^{log}"
    elif compression not in _COMPRESSIONS:
        wrong = f"compression {compression} is unknown"
    elif not SUPERBLOCK_BYTES < used <= size_bytes:
        wrong = f"it says it has {used} bytes, the file has {size_bytes} for it"
    elif not SUPERBLOCK_BYTES <= inode_table < directory_table < used or not directory_table < ids < used:
        wrong = "its tables lie outside of it or in the wrong order"
    elif fragment_table != _NO_TABLE and not directory_table < fragment_table < used:
        wrong = "its fragment table lies outside of it"
    elif not inodes or (root >> 16) >= directory_table - inode_table or root & 0xFFFF >= 8192:
        wrong = "its root lies outside of the inode table"
    if wrong:
        raise ImageRefused(f"{name}: {wrong}: damaged or cut short; copy or build it again")
    return Squashfs(
        used,
        block_bytes,
        _COMPRESSIONS[compression],
        inodes,
        root,
        fragments,
        inode_table,
        directory_table,
        fragment_table,
    )


@dataclass(frozen=True)
class SifTable:
    """Where a SIF's descriptors are, and for which machine it is."""

    offset_bytes: int
    count: int
    machine: str | None


def sif_header(data: bytes, size_bytes: int, name: str) -> SifTable:
    """Return where the table of descriptors is, from the first `SIF_HEADER_BYTES`. Raises `ImageRefused`."""
    if not is_sif(data):
        raise ImageRefused(f"{name}: not a SIF")
    _launch, _magic, version, machine, _uuid, _made, _changed, free, total, offset, length, _data, _size = (
        _SIF_HEADER.unpack_from(data)
    )
    if version[:2] != b"01":
        raise ImageRefused(f"{name}: SIF version {version[:2]!r}; only 01 is known here")
    if not 0 < total <= MOST_DESCRIPTORS or not 0 <= free <= total:
        raise ImageRefused(
            f"{name}: a SIF of {total} descriptors, {free} of them free; at most {MOST_DESCRIPTORS} are read"
        )
    needed = total * _SIF_DESCRIPTOR.size
    if not SIF_HEADER_BYTES <= offset <= size_bytes - needed or length < 0:
        raise ImageRefused(
            f"{name}: the SIF's table of {needed} bytes at {offset} is not in the file of {size_bytes} bytes"
        )
    return SifTable(offset, total, _SIF_MACHINES.get(machine[:2]))


def sif_partition(table: bytes, size_bytes: int, name: str) -> tuple[int, int]:
    """Return offset and length of the primary squashfs partition in bytes, from a SIF's whole table. Raises `ImageRefused`."""
    found: list[tuple[int, int]] = []
    for at in range(0, len(table) - _SIF_DESCRIPTOR.size + 1, _SIF_DESCRIPTOR.size):
        kind, used, _id, _group, _link, offset, length, *_rest, extra = _SIF_DESCRIPTOR.unpack_from(table, at)
        file_system, part = struct.unpack_from("<ii", extra)
        if not used or kind != _SIF_PARTITION or part != _SIF_PRIMARY:
            continue
        if file_system != _SIF_SQUASHFS:
            what = _SIF_FILE_SYSTEMS.get(file_system, f"type {file_system}")
            raise ImageRefused(f"{name}: its primary partition is {what}; only squashfs can be served: build it again")
        if offset < SIF_HEADER_BYTES or length < SUPERBLOCK_BYTES or offset > size_bytes - length:
            raise ImageRefused(
                f"{name}: its partition of {length} bytes at {offset} is not in the file of {size_bytes} bytes"
            )
        found.append((offset, length))
    if len(found) != 1:
        raise ImageRefused(f"{name}: the SIF has {len(found)} primary partitions; exactly one is expected")
    return found[0]


def is_sif(data: bytes) -> bool:
    """Whether a file that begins so says that it is a SIF."""
    return len(data) >= SIF_HEADER_BYTES and data[32:42] == _SIF_MAGIC


def is_tar(data: bytes) -> bool:
    """Whether a file that begins so is a tar archive, as `docker save` writes one."""
    return data[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


def _folder(path: str) -> Identified:
    """Tell a layout from a tree. What skopeo writes to `dir:` would pass for a tree, and be an image of blobs."""

    def has(*names: str) -> bool:
        return all(os.path.isfile(os.path.join(path, name)) for name in names)

    if has("oci-layout", "index.json"):
        return Identified("oci")
    if has("manifest.json", "version"):
        with open(os.path.join(path, "version"), "rb") as file:
            if file.read(len(_DIR_TRANSPORT)) == _DIR_TRANSPORT:
                said = _CONVERT.format(kind="dir", path=path, or_else="")
                raise ImageRefused(f"{path}: an image that skopeo copied to dir: {said}")
    return Identified("directory")


def identify(path: str) -> Identified:
    """Look at a file or folder. Raises `ImageRefused` where it is no image, OSError where it cannot be read."""
    if os.path.isdir(path):
        return _folder(path)
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) and not size:
            raise ImageRefused(f"{path}: neither a file nor a folder")
        start = os.pread(file.fileno(), SIF_HEADER_BYTES, 0)
        if not is_sif(start):
            if start[:4] != b"hsqs" and is_tar(os.pread(file.fileno(), TAR_HEAD_BYTES, 0)):
                or_else = " (`oci-archive:` if it holds a layout)"
                said = _CONVERT.format(kind="docker-archive", path=path, or_else=or_else)
                raise ImageRefused(f"{path}: a tar archive: {said}")
            return Identified("squashfs", 0, size, superblock(start, size, path))
        table = sif_header(start, size, path)
        data = os.pread(file.fileno(), table.count * _SIF_DESCRIPTOR.size, table.offset_bytes)
        offset, length = sif_partition(data, size, path)
        inner = superblock(os.pread(file.fileno(), SUPERBLOCK_BYTES, offset), length, f"{path}: partition at {offset}")
        return Identified("sif", offset, length, inner, table.machine)
