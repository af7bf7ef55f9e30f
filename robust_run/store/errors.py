"""What can go wrong with a store, as a tree by what the caller can do about it.

`Unavailable` and `Stalled` are *transient*: the same call may work in a moment. All others are answers, and final.
"""

from __future__ import annotations

import errno

from robust_run.errors import PlatformError

_TRANSIENT_ERRNOS = frozenset(
    (
        errno.EAGAIN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EINTR,
        errno.ENETDOWN, errno.ENETUNREACH, errno.EPIPE, errno.ESTALE, errno.ETIMEDOUT,
    )
)  # fmt: skip


class StoreError(PlatformError):
    """A store did not do what it was asked. The message names the store and the path."""

    def __init__(self, url: str, path: str, what: str) -> None:
        """`what` went wrong and, where there is one, the next step."""
        super().__init__(url, path, what)
        self.url, self.path, self.what = url, path, what

    def __str__(self) -> str:
        place = f"{self.url.rstrip('/')}/{self.path}" if self.path else self.url
        return f"{place}: {self.what}"

    def add_attempts(self, attempts: int) -> None:
        """Have the message say how often it was tried."""
        self.what = f"{self.what} (tried {attempts} times)"


class BadPath(StoreError):  # noqa: N818 (reads as what happened)
    """A path that is none: absolute, with "..", too long. Nothing was touched."""


class NotFound(StoreError):  # noqa: N818 (reads as what happened)
    """There is no such file or folder."""


class AlreadyExists(StoreError):  # noqa: N818 (reads as what happened)
    """There is one already, and it was not to be replaced."""


class AccessDenied(StoreError):  # noqa: N818 (reads as what happened)
    """We may not do that there: check owner, mode, credentials."""


class ReadOnly(StoreError):  # noqa: N818 (reads as what happened)
    """Nothing can be written there, by any user."""


class NoSpace(StoreError):  # noqa: N818 (reads as what happened)
    """It is full, or our quota is."""


class TooLarge(StoreError):  # noqa: N818 (reads as what happened)
    """The file is larger than what it is read for can be."""


class Changed(StoreError):  # noqa: N818 (reads as what happened)
    """The file was replaced while it was being read: pieces of two would have been mixed."""


class Unsupported(StoreError):  # noqa: N818 (reads as what happened)
    """This kind of store cannot do that."""


class Cancelled(StoreError):  # noqa: N818 (reads as what happened)
    """It was called off by the caller."""


class ShortRead(StoreError):  # noqa: N818 (reads as what happened)
    """The file ends before the range that was asked for."""

    def __init__(self, url: str, path: str, offset_bytes: int, expected_bytes: int, got_bytes: int) -> None:
        what = f"{expected_bytes} bytes were asked for at offset {offset_bytes}, {got_bytes} are there: the file is truncated"
        super().__init__(url, path, what)
        self.offset_bytes, self.expected_bytes, self.got_bytes = offset_bytes, expected_bytes, got_bytes
        self.args = (url, path, offset_bytes, expected_bytes, got_bytes)


class Unavailable(StoreError):  # noqa: N818 (reads as what happened)
    """It cannot be reached, or broke off. Transient."""

    retry_after_s: float = 0.0
    """After how many seconds it wants to be asked again; 0.0: it does not say."""


class Stalled(Unavailable):
    """It sent or took no byte for too long. Transient."""


def is_transient(error: BaseException) -> bool:
    """Whether the same call may work in a moment."""
    return isinstance(error, Unavailable)


def from_os_error(error: OSError, url: str, path: str) -> StoreError:
    """Return ours for one of the operating system's."""
    words = error.strerror or str(error) or type(error).__name__
    number = error.errno
    if number == errno.ENOTDIR:
        return NotFound(url, path, "a file is where a folder of its path should be")
    if isinstance(error, FileNotFoundError):
        return NotFound(url, path, "no such file or folder")
    if isinstance(error, IsADirectoryError):
        return NotFound(url, path, "is a folder, not a file")
    if isinstance(error, FileExistsError):
        return AlreadyExists(url, path, "exists already")
    if number == errno.EROFS:
        return ReadOnly(url, path, "the file system is read-only: choose another folder, or mount it for writing")
    if isinstance(error, PermissionError):
        return AccessDenied(url, path, f"{words}: check the owner and mode of the folders")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(url, path, f"{words}: free some space, or choose another folder")
    if isinstance(error, TimeoutError | ConnectionError) or number in _TRANSIENT_ERRNOS:
        return Unavailable(url, path, words)
    return StoreError(url, path, words)
