"""What hdfs-native raises, in our errors. It tells most of it in words only: those of Hadoop's exceptions."""

from __future__ import annotations

from robust_run.store.errors import (
    AccessDenied,
    NoSpace,
    NotFound,
    ReadOnly,
    StoreError,
    Unavailable,
    from_os_error,
)

#: What is in the text, what it is, and what to say instead of the text. The first that fits counts.
_MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("AccessControlException", AccessDenied, ""),
    ("QuotaExceededException", NoSpace, ""),
    ("could only be replicated to 0 nodes", NoSpace, "no DataNode takes a block: they are full, or none is alive"),
    ("could only be written to 0 of", NoSpace, "no DataNode takes a block: they are full, or none is alive"),
    ("SafeModeException", Unavailable, "the NameNode is in safe mode"),
    ("StandbyException", Unavailable, "the NameNode is a standby"),
    ("is not a directory", NotFound, "a file is where a folder of its path should be"),
    ("ParentNotDirectory", NotFound, "a file is where a folder of its path should be"),
    ("UnsupportedOperation", StoreError, ""),
    ("Read-only", ReadOnly, ""),
)
_LONGEST = 300


def from_hdfs(error: BaseException, url: str, path: str) -> StoreError:
    """Return ours for one of hdfs-native's."""
    text = str(error).replace("\\n\\tat", "\n\tat").partition("\n")[0][:_LONGEST] or type(error).__name__
    for words, kind, meaning in _MEANINGS:
        if words in str(error):
            return kind(url, path, meaning or text)
    if isinstance(error, OSError):
        found = from_os_error(error, url, path)
        return found if type(found) is not StoreError else Unavailable(url, path, text)
    if isinstance(error, Exception):
        return Unavailable(url, path, text)
    return StoreError(url, path, f"hdfs-native gave up: {text}")
