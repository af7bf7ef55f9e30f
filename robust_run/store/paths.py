"""Paths within a store, and URLs of stores. Pure: nothing here looks at a file system."""

from __future__ import annotations

import re
import urllib.parse

from robust_run.store.errors import BadPath

LONGEST_PATH_BYTES = 1024
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)(?=://)")


def clean(path: str, url: str = "") -> str:
    """Return a path that cannot leave its store: relative, '/'-separated, of plain parts.

    Raises `BadPath` for anything else; it is refused, never repaired. `url` is for the message.
    """
    reason = _what_is_wrong(path)
    if reason:
        raise BadPath(url or "path", "", f"{path[:80]!r} {reason}")
    return path


def clean_folder(path: str, url: str = "") -> str:
    """Return the path of a folder: as `clean`, or "" for the store's own."""
    return clean(path, url) if path else ""


def _what_is_wrong(path: str) -> str | None:
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "is no valid text"
    if not path:
        return "is empty"
    if length > LONGEST_PATH_BYTES:
        return f"has {length} bytes: at most {LONGEST_PATH_BYTES} are allowed"
    if "\0" in path:
        return "has a NUL byte in it"
    if path.startswith("/"):
        return "is absolute: it must be relative to its store"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "has a part that is empty, '.' or '..'"
    return None


def is_clean(path: str) -> bool:
    """Whether `clean` accepts it."""
    return _what_is_wrong(path) is None


def parent(path: str) -> str:
    """Return the folder of a path; "" at the top."""
    return path.rpartition("/")[0]


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder, which may be ""."""
    return f"{folder}/{name}" if folder else name


def scheme_of(url: str) -> str:
    """Return the scheme in lower case; "" for a plain path."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else ""


def host_of(url: str) -> str:
    """Return host and port in lower case, without credentials; "" where there is none."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2].lower() if scheme_of(url) else ""


def shown(url: str) -> str:
    """Return a URL as it may be printed: without user, password, and what follows '?' or '#' (signatures)."""
    if not scheme_of(url):
        return url
    parts = urllib.parse.urlsplit(url)
    return joined(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def child(url: str, path: str) -> str:
    """Return the URL of something below a folder's URL, or below a plain path. What follows '?' stays at the end."""
    clean(path, shown(url))
    if not scheme_of(url):
        return f"{url.rstrip('/')}/{path}" if url else path
    parts = urllib.parse.urlsplit(url)
    below = f"{parts.path.rstrip('/')}/{urllib.parse.quote(path) if _is_quoted(parts.scheme) else path}"
    return joined(parts._replace(path=below))


def index_of(url: str) -> str:
    """Return the URL of a folder's index page: its own, with "/" at the end of the path."""
    parts = urllib.parse.urlsplit(url)
    return joined(parts._replace(path=f"{parts.path.rstrip('/')}/"))


def joined(parts: urllib.parse.SplitResult) -> str:
    """Return the URL of its parts. Without a host, as in hdfs:///ckpt, Python would leave out the slashes that make it one."""
    text = urllib.parse.urlunsplit(parts)
    start = f"{parts.scheme}://"
    return text if text.startswith(start) else start + text[len(parts.scheme) + 1 :]


def _is_quoted(scheme: str) -> bool:
    """Whether paths in URLs of this scheme are percent-encoded. HDFS and object stores take them as they are."""
    return scheme.lower() in ("file", "http", "https")
