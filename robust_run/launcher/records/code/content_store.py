"""Content-addressed store: contents by their digest, read-only, in one folder.

What is read is checked against its name, so a disk that rots or a hand that edits is found out. Several nodes may share one
store: files appear whole, and the second writer finds what it wants.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256

from robust_run.atomic_file import write_file
from robust_run.launcher.records.code.errors import CodeError, CodeStoreError, LackingError
from robust_run.launcher.records.code.names import is_digest
from robust_run.launcher.records.code.reading import read_file
from robust_run.launcher.records.code.types import LIMITS

#: Of a digest, as people see it and as the folder of a tree is called.
SHORT = 10
#: Modes of what is kept, and of folders.
READ_ONLY, OURS = 0o400, 0o700


def digest_of(data: bytes) -> str:
    """Return the digest that a content, or a tree, is known by."""
    return sha256(data).hexdigest()


class ContentStore:
    """One store. Everything raises StoreError where the disk does not do what it should."""

    def __init__(self, folder: str) -> None:
        """`folder` need not exist yet."""
        self.folder = folder

    def place_of(self, digest: str) -> str:
        """Return where a content is, or would be. Raises CodeError for what is no digest."""
        if not is_digest(digest):
            raise CodeError(f"{digest[:80]!r} is no digest")
        return os.path.join(self.folder, "objects", digest[:2], digest[2:])

    def put(self, data: bytes) -> str:
        """Keep a content and return its digest."""
        digest = digest_of(data)
        path = self.place_of(digest)
        if not os.path.exists(path):
            self.keep(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a content. Raises LackingError if it is not here, StoreError if it is not what it should be."""
        path = self.place_of(digest)
        try:
            data = read_file(path, LIMITS.largest_file_bytes)
        except FileNotFoundError:
            raise LackingError(f"the code's content {digest[:SHORT]} is not in {self.folder!r}") from None
        except OSError as error:
            raise CodeStoreError(f"cannot read {path!r}: {error.strerror or error}") from error
        if data is None or digest_of(data) != digest:
            raise CodeStoreError(f"{path!r} is damaged: it is not what its name says; stage the update again")
        return data

    def keep(self, path: str, data: bytes) -> None:
        """Write a file that is never changed again; it appears whole. Raises StoreError."""
        folder = os.path.dirname(path)
        beside = os.path.join(folder, f".{os.urandom(6).hex()}")
        try:
            try:
                write_file(path, data, draft=beside, mode=READ_ONLY)
            except FileNotFoundError:
                make_folders(folder)
                write_file(path, data, draft=beside, mode=READ_ONLY)
        except OSError as error:
            raise CodeStoreError(f"cannot write {path!r}: {error.strerror or error}") from error


def make_folders(path: str) -> None:
    """Make a folder and those above it that are missing, all of them for us alone. Raises OSError."""
    if os.path.isdir(path):
        return
    make_folders(os.path.dirname(path))
    with suppress(FileExistsError):
        os.mkdir(path, OURS)
