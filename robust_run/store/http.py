"""HTTP and HTTPS, for reading: ranges straight into the caller's buffers, by threads with a kept connection each.

Threads with `http.client` beat asyncio and urllib3 here: at high speed the CPU decides. Every reply is checked: the range it says
it is, the size and ETag that the first one had. Redirects are followed and remembered.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.buffers import byte_views, total_bytes
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import (
    AccessDenied,
    Cancelled,
    Changed,
    ReadOnly,
    ShortRead,
    TooLarge,
    Unavailable,
    Unsupported,
)
from robust_run.store.http_body import Reply
from robust_run.store.http_connections import Connections
from robust_run.store.rules.http_replies import (
    Version,
    check_page,
    check_range,
    check_status,
    is_page,
    length_of,
    version_of,
    whole_size,
)
from robust_run.store.types import Entry, StoreOptions, Walked, Writer

_MOST_THREADS = 32
#: A server that ignores ranges sends a file from its start: so much is read and dropped to come to an offset, no more.
_SKIPPED_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_MOST_FILES_KNOWN = 65536


class HttpStore:
    """A folder on a web server. It cannot be listed, and not be written to."""

    writable = False

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Connects to nothing yet. Raises `UserError` for a URL without a host."""
        if not paths.host_of(url):
            raise UserError(f"{paths.shown(url)} has no host: write http://host/folder")
        self.url = paths.shown(url)
        self._base = url
        self.threads = options.threads or _MOST_THREADS
        self._connections = Connections(url, options)
        self._one_version = options.one_version
        self._lock = threading.Lock()
        self._known: dict[str, Version] = {}

    def read_into(
        self, path: str, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation | None = None
    ) -> None:
        """Fill all buffers; see `Store`. `Changed` where the file is not the one that was read from before, if that matters."""
        views = byte_views(buffers, to_fill=True)
        wanted = total_bytes(views)
        if not wanted:
            return
        headers = {"Range": f"bytes={offset_bytes}-{offset_bytes + wanted - 1}"}
        with self._reply("GET", path, headers, cancel) as reply:
            if reply.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                there = max(0, (whole_size(reply) or offset_bytes) - offset_bytes)
                raise ShortRead(self.url, path, offset_bytes, wanted, there)
            self._check_version(path, reply)
            if reply.status == http.client.PARTIAL_CONTENT:
                there = check_range(self.url, path, reply, offset_bytes, wanted)
                if there < wanted:
                    raise ShortRead(self.url, path, offset_bytes, wanted, there)
            else:
                self._skip(path, reply, offset_bytes, wanted)
            for view in views:
                self._fill(path, reply, view)

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        """Return a whole file as it is now; see `Store`."""
        with self._reply("GET", path, {}, None) as reply:
            length = length_of(reply)
            if length is not None and length > limit_bytes:
                raise TooLarge(self.url, path, f"has {length} bytes: at most {limit_bytes} are read")
            found = bytearray()
            while piece := reply.read(min(_PIECE_BYTES, limit_bytes + 1 - len(found))):
                found += piece
                if len(found) > limit_bytes:
                    raise TooLarge(self.url, path, f"has more than {limit_bytes} bytes: no more are read")
            if length is not None and len(found) < length:
                raise Unavailable(self.url, path, f"the server broke off after {len(found)} of {length} bytes")
            return bytes(found)

    def size_bytes(self, path: str) -> int:
        """Return the length of a file; see `Store`. From here on reads are checked to be of the file as it is now."""
        with self._lock:
            self._known.pop(path, None)
        with self._reply("HEAD", path, {}, None) as reply:
            known = reply.status == http.client.OK and not is_page(path, reply)
            length = length_of(reply) if known else None
        if length is not None:
            return length
        # HEAD is not for everyone, and only what comes shows whether it is a page.
        with self._reply("GET", path, {"Range": "bytes=0-0"}, None) as reply:
            length = whole_size(reply) if reply.status != http.client.OK else length_of(reply)
        if length is None:
            raise Unsupported(self.url, path, "the server does not say how long it is")
        return length

    def list(self, path: str = "") -> list[Entry]:
        """Raise `Unsupported`: HTTP has no folders."""
        raise Unsupported(self.url, path, "a web server's folders cannot be listed: name the file or checkpoint itself")

    def folders(self) -> Sequence[str]:
        """Return the names of folders that the server's index page of this one links to. Raises StoreError: there is no page."""
        from robust_run.store import http_index

        base = paths.index_of(self._base)
        with self._connections.asking("GET", base, "", {}, None) as reply:
            check_status(self.url, "", "GET", reply)
            if not (reply.getheader("Content-Type") or "").lower().startswith("text/html"):
                raise Unsupported(
                    self.url, "", "the server shows no index of this folder: have it show one (nginx: autoindex on)"
                )
            page = bytearray()
            while piece := reply.read(min(_PIECE_BYTES, http_index.LARGEST_PAGE_BYTES - len(page))):
                page += piece
            text = page.decode(errors="replace")
            if not http_index.is_index(text, base):
                said = "the server sent a web page that is no index of this folder, perhaps to log in"
                raise AccessDenied(
                    self.url, "", f"{said}: check the URL and the token, and have it show one (autoindex on)"
                )
            return http_index.folders_in(text, base)

    def walk(self, path: str = "") -> tuple[Walked, ...]:
        """Raise `Unsupported`, as `list` does."""
        self.list(path)
        raise AssertionError

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> Writer:  # noqa: ARG002
        """Raise `ReadOnly`."""
        raise ReadOnly(self.url, path, "nothing is written over HTTP: choose a path, hdfs:// or an object store")

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:  # noqa: ARG002
        """Raise `ReadOnly`."""
        self.create(path)

    def remove(self, path: str) -> None:
        """Raise `ReadOnly`."""
        raise ReadOnly(self.url, path, "nothing is removed over HTTP")

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    @contextmanager
    def _reply(self, method: str, path: str, headers: dict[str, str], cancel: Cancellation | None) -> Iterator[Reply]:
        """Ask for a file."""
        paths.clean(path, self.url)
        with self._connections.asking(method, paths.child(self._base, path), path, headers, cancel) as reply:
            check_status(self.url, path, method, reply)
            if method != "HEAD":
                check_page(self.url, path, reply)
            try:
                yield reply
            except Unavailable as error:  # a reply that is called off looks as if it had broken off
                if cancel is not None and cancel.cancelled:
                    raise Cancelled(self.url, path, "called off") from error
                raise

    def _check_version(self, path: str, reply: Reply) -> None:
        if not self._one_version:
            return
        now = version_of(reply)
        with self._lock:
            if len(self._known) >= _MOST_FILES_KNOWN:
                self._known.clear()
            known = self._known.setdefault(path, now)
        if not known.agrees(now):
            raise Changed(self.url, path, f"it was {known} and is now {now}: it was replaced while being read")

    def _skip(self, path: str, reply: Reply, offset_bytes: int, wanted: int) -> None:
        """Come to an offset of a reply that is the whole file."""
        length = length_of(reply)
        if length is not None and length < offset_bytes + wanted:
            raise ShortRead(self.url, path, offset_bytes, wanted, max(0, length - offset_bytes))
        if offset_bytes > _SKIPPED_BYTES:
            limit = f"more than {_SKIPPED_BYTES >> 20} MiB of it would be read in vain"
            raise Unsupported(self.url, path, f"the server ignores Range: {limit}; serve it with nginx, for one")
        scratch = memoryview(bytearray(min(offset_bytes, _PIECE_BYTES)))
        while offset_bytes:
            piece = scratch[: min(len(scratch), offset_bytes)]
            self._fill(path, reply, piece)
            offset_bytes -= len(piece)

    def _fill(self, path: str, reply: Reply, view: memoryview) -> None:
        got = reply.fill(view)
        if got < len(view):
            missing = f"{len(view) - got} of {len(view)} bytes"
            raise Unavailable(self.url, path, f"the server broke off, {missing} before the end")
