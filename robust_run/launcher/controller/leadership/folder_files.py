"""The few things that leadership does with a shared folder, each bounded in time: the folder may be a file server's.

What makes them safe where hosts cache what a file server told them: names appear with their content complete (written
aside, then linked or renamed), exclusive creation is decided by the server, and `names(fresh=True)` changes the folder first,
so that this host must ask the server about it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from robust_run.launcher.controller.leadership.threads import in_thread
from robust_run.launcher.controller.leadership.types import CoordinatorRefused, CoordinatorUnreachable

T = TypeVar("T")

MOST_FILE_BYTES = 128 << 20

_FINAL = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


class SharedFiles(Protocol):
    """A folder. Every call raises CoordinatorUnreachable when it takes longer than `timeout_s`, and may still take effect
    later; CoordinatorRefused for what trying again cannot mend."""

    async def names(self, timeout_s: float, fresh: bool = False) -> list[str]:
        """Return the names in the folder; `fresh`: as the server has them after this call began. No folder: no names."""
        ...

    async def read(self, name: str, timeout_s: float) -> bytes | None:
        """Return a file's content; None: there is no such file."""
        ...

    async def create(self, name: str, data: bytes, timeout_s: float) -> bool:
        """Make a file that did not exist, durable and with its content complete; False: it existed."""
        ...

    async def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        """Make a file or replace its content at once; not durable."""
        ...

    async def remove(self, names: Iterable[str], timeout_s: float) -> None:
        """Remove files; those that do not exist are no error."""
        ...


class SharedFolder:
    """A real folder, made with mode 0700 when first written to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stuck: set[object] = set()

    async def names(self, timeout_s: float, fresh: bool = False) -> list[str]:
        """See Files."""
        return await self._bounded(lambda: self._names(fresh), timeout_s, "list")

    async def read(self, name: str, timeout_s: float) -> bytes | None:
        """See Files."""
        return await self._bounded(lambda: self._read(name), timeout_s, "read")

    async def create(self, name: str, data: bytes, timeout_s: float) -> bool:
        """See Files."""
        return await self._bounded(lambda: self._create(name, data), timeout_s, "write")

    async def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        """See Files."""
        await self._bounded(lambda: self._replace(name, data), timeout_s, "write")

    async def remove(self, names: Iterable[str], timeout_s: float) -> None:
        """See Files."""
        await self._bounded(lambda: self._remove(tuple(names)), timeout_s, "remove")

    async def _bounded(self, function: Callable[[], T], timeout_s: float, verb: str) -> T:
        try:
            return await in_thread(function, timeout_s, f"{verb} {self.path!r}", self._stuck)
        except TimeoutError as error:
            raise CoordinatorUnreachable(f"{error}; is its file server alive?") from error
        except OSError as error:
            kind = CoordinatorRefused if error.errno in _FINAL else CoordinatorUnreachable
            hint = "; it must be writable and allow hard links" if error.errno in _FINAL else ""
            raise kind(f"cannot {verb} in {self.path!r}: {error.strerror}{hint}") from error

    def _names(self, fresh: bool) -> list[str]:
        if fresh:
            os.unlink(self._aside(b"", durable=False))
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> bytes | None:
        try:
            with open(self._at(name), "rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > MOST_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{name} is larger than {MOST_FILE_BYTES} bytes")
        return data

    def _create(self, name: str, data: bytes) -> bool:
        aside = self._aside(data, durable=True)
        try:
            os.link(aside, self._at(name))
        except FileExistsError:
            if os.stat(aside).st_nlink < 2:  # 2: it was made, and only the file server's first answer was lost
                return False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(aside)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not every file system can
                os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def _replace(self, name: str, data: bytes) -> None:
        aside = self._aside(data, durable=False)
        try:
            os.replace(aside, self._at(name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at(name))

    def _aside(self, data: bytes, durable: bool) -> str:
        path = self._at(f".{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return path

    def _at(self, name: str) -> str:
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is no file name")
        return os.path.join(self.path, name)
