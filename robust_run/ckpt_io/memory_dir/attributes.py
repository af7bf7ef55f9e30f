"""What `stat` shows of a file."""

from __future__ import annotations

import os
import stat
from typing import Any

from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.mount.operations import BLOCK_BYTES


def of_memory(kept: Kept) -> dict[str, Any]:
    """Return it of what memory keeps."""
    if kept.kind == "folder":
        return attributes(stat.S_IFDIR | (kept.mode | 0o700), 4096, kept.modified_ns)
    if kept.data is None:
        return attributes(stat.S_IFLNK | 0o777, len(os.fsencode(kept.target)), kept.modified_ns)
    return attributes(stat.S_IFREG | kept.mode, kept.data.size_bytes, kept.modified_ns)


def of_storage(status: os.stat_result) -> dict[str, Any]:
    """Return it of what storage has."""
    return {
        "st_mode": status.st_mode,
        "st_nlink": status.st_nlink,
        "st_size": status.st_size,
        "st_blocks": status.st_blocks,
        "st_blksize": BLOCK_BYTES,
        "st_uid": status.st_uid,
        "st_gid": status.st_gid,
        "st_mtime": status.st_mtime_ns,
        "st_ctime": status.st_ctime_ns,
        "st_atime": status.st_atime_ns,
    }


def attributes(mode: int, size_bytes: int, modified_ns: int) -> dict[str, Any]:
    """Return it of what has such a mode and size."""
    return {
        "st_mode": mode,
        "st_nlink": 2 if stat.S_ISDIR(mode) else 1,
        "st_size": size_bytes,
        "st_blocks": -(-size_bytes // 512),
        "st_blksize": BLOCK_BYTES,
        "st_uid": os.getuid(),
        "st_gid": os.getgid(),
        "st_mtime": modified_ns,
        "st_ctime": modified_ns,
        "st_atime": modified_ns,
    }
