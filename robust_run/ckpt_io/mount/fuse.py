"""mfusepy with reads and writes that copy once: between the kernel's buffer and the cache, without Python bytes in between."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import mfusepy

from robust_run.ckpt_io.mount.operations import ReadOnlyOperations


class DirectFuse(mfusepy.FUSE):  # type: ignore[misc,unused-ignore]
    """Calls `read_to` and `write_from` of its operations with the kernel's own buffers."""

    operations: ReadOnlyOperations

    def read(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> int:  # noqa: ARG002
        """Fill the kernel's buffer."""
        return self.operations.read_to(ctypes.addressof(buf.contents), size, offset, fip.contents.fh)

    def open(self, path: bytes, fip: Any) -> int:
        """Open a file. What is written goes past the page cache, which would only cut it in small pieces."""
        result = int(super().open(path, fip))
        if fip.contents.flags & (os.O_WRONLY | os.O_RDWR):
            fip.contents.direct_io = 1
        return result

    def create(self, path: bytes, mode: int, fip: Any) -> int:
        """Begin a file, past the page cache as well."""
        result = int(super().create(path, mode, fip))
        fip.contents.direct_io = 1
        return result

    def write(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> int:  # noqa: ARG002
        """Hand on the kernel's buffer; it is the kernel's again when this returns."""
        data = memoryview((ctypes.c_char * size).from_address(ctypes.addressof(buf.contents))).cast("B")
        return self.operations.write_from(data, offset, fip.contents.fh)

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        """Cut a file, named by path or, if it is open, by number: the base class forgets the number."""
        name = None if path is None else path.decode(self.encoding, self.errors)
        return int(self.operations.truncate(name, length, fip.contents.fh if fip else None))
