"""A folder over another one that hangs as long as a file exists: whoever calls then waits, and a SIGKILL does not help.

python hanging_folder.py POINT FOLDER SWITCH
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

import mfusepy


class Hanging(mfusepy.Operations):
    """Passes everything on."""

    use_ns = True

    def __init__(self, folder: str, switch: str) -> None:
        self._folder, self._switch = folder, switch

    def _at(self, path: str) -> str:
        while os.path.exists(self._switch):
            time.sleep(0.05)
        return self._folder + path

    def access(self, path: str, amode: int) -> int:
        if not os.access(self._at(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")
        times = {f"st_{each}time": getattr(found, f"st_{each}time_ns") for each in "amc"}
        return {**{name: getattr(found, name) for name in names}, **times}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._at(old), self._at(new))
        return 0

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~(os.O_DIRECT | os.O_APPEND))

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._at(path)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._at(path)
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._at(path)
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize", "f_namemax")
        return {name: getattr(found, name) for name in names}


if __name__ == "__main__":
    mfusepy.FUSE(Hanging(sys.argv[2], sys.argv[3]), sys.argv[1], foreground=True, nothreads=False)
