"""HDFS, through hdfs-native: no JVM, threads that do not hold the interpreter up. Its defects are worked round here.

What hdfs-native 0.14 does, and what is done about it: it waits for minutes for a NameNode that is not there (calls are watched);
reading past the end of a file panics (the length is looked at first); it writes anything but `bytes` slowly (so it is given
`bytes`); a DataNode that does not answer ends a write for good (small files are written again, see `hdfs_writing`).
"""

from __future__ import annotations

import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.buffers import byte_views, scatter, total_bytes
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import (
    AccessDenied,
    AlreadyExists,
    NoSpace,
    NotFound,
    ReadOnly,
    ShortRead,
    StoreError,
    TooLarge,
    Unavailable,
    from_os_error,
    is_transient,
)
from robust_run.store.hdfs_writing import HdfsWriter
from robust_run.store.types import Entry, Kind, StoreOptions, Walked
from robust_run.store.watching import CallProgress, CallWatcher

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader

T = TypeVar("T")

_MOST_THREADS = 8
#: Files whose blocks' places are remembered.
_MOST_READERS = 256
_WRITE_ATTEMPTS = 5


class HdfsStore:
    """A folder on HDFS. Files are written under a name of their own and renamed, which the NameNode does in one step."""

    writable = True

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Connects to nothing yet. Raises `UserError` where hdfs-native is not installed."""
        try:
            import hdfs_native  # noqa: F401 (whether it is there)
        except ImportError as error:
            raise UserError(f"{paths.shown(url)} needs hdfs-native: pip install hdfs-native ({error})") from error
        parts = urllib.parse.urlsplit(url)
        self.url = paths.shown(url)
        self.threads = options.threads or _MOST_THREADS
        self._service = f"{parts.scheme}://{parts.netloc}" if parts.netloc else None
        self._root = parts.path.rstrip("/")
        self._properties = dict(options.extra)
        self._watcher = CallWatcher(self.url, options.stall_s)
        self._lock = threading.Lock()
        self._connected: Client | None = None
        self._readers: OrderedDict[str, FileReader] = OrderedDict()

    def read_into(
        self, path: str, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation | None = None
    ) -> None:
        """Fill all buffers; see `Store`. The blocks of a file are looked up once: it is taken to stay as it is."""
        views = byte_views(buffers, to_fill=True)
        wanted = total_bytes(views)
        place = self._place(path)

        def read(progress: CallProgress) -> None:
            reader = self._reader(path, place)
            progress.step()
            there = min(wanted, max(0, len(reader) - offset_bytes))
            if there < wanted:
                raise ShortRead(self.url, path, offset_bytes, wanted, there)
            at = 0
            for piece in reader.read_range_stream(offset_bytes, wanted) if wanted else ():
                with progress.touching():
                    scatter(piece, views, at)
                at += len(piece)
            if at < wanted:
                raise Unavailable(self.url, path, f"HDFS sent {at} of {wanted} bytes")

        try:
            self._call(path, read, cancel)
        except StoreError:
            self._forget(path)
            raise

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        """Return a whole file as it is now; see `Store`."""
        size_bytes = self.size_bytes(path)
        if size_bytes > limit_bytes:
            raise TooLarge(self.url, path, f"has {size_bytes} bytes: at most {limit_bytes} are read")
        found = bytearray(size_bytes)
        self.read_into(path, 0, [memoryview(found)])
        return bytes(found)

    def size_bytes(self, path: str) -> int:
        """Return the length of a file; its blocks are looked up anew after that."""
        place = self._place(path)
        self._forget(path)
        status = self._call(path, lambda _: self._client().get_file_info(place))
        if status.isdir:
            raise NotFound(self.url, path, "is a folder, not a file")
        return status.length

    def list(self, path: str = "") -> list[Entry]:
        """Return what a folder holds; see `Store`."""
        place = self._place(path, folder=True) or "/"

        def look(_progress: CallProgress) -> list[Entry]:
            found = []
            for item in self._client().list_status(place):
                if item.path == place and not item.isdir:
                    raise NotFound(self.url, path, "is a file, not a folder")
                size_bytes, modified_s = 0 if item.isdir else item.length, item.modification_time / 1e3
                name = item.path.rpartition("/")[2]
                found.append(Entry(name=name, size_bytes=size_bytes, is_folder=item.isdir, modified_s=modified_s))
            return found

        found = self._call(path, look)
        return sorted((entry for entry in found if paths.is_clean(entry.name)), key=lambda entry: entry.name)

    def walk(self, path: str = "") -> tuple[Walked, ...]:
        """Return everything below a folder; see `Store`."""
        top = self._place(path, folder=True) or "/"

        def look(progress: CallProgress) -> tuple[Walked, ...]:
            waiting, found = [top], []
            while waiting:
                place = waiting.pop()
                for item in self._client().list_status(place):
                    if item.path == top and not item.isdir:
                        raise NotFound(self.url, path, "is a file, not a folder")
                    below = item.path[len(top) :].lstrip("/")
                    size_bytes, modified_s = 0 if item.isdir else item.length, item.modification_time / 1e3
                    kind: Kind = "folder" if item.isdir else "file"
                    found.append(Walked(path=below, kind=kind, size_bytes=size_bytes, modified_s=modified_s))
                    if item.isdir:
                        waiting.append(item.path)
                progress.step()
            return tuple(found)

        return tuple(sorted(self._call(path, look), key=lambda walked: walked.path))

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> HdfsWriter:
        """Begin a file; see `Store`. Pieces must come in order."""
        return self._create(path, size_bytes, durable=durable, replace=True)

    def _create(self, path: str, size_bytes: int | None, *, durable: bool, replace: bool) -> HdfsWriter:
        place = self._place(path)
        self._check_no_folder(path, place)
        return HdfsWriter(self._client, self._call, self.url, path, place, size_bytes, durable=durable, replace=replace)

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:
        """Write a small file at once; see `Store`."""
        for left in reversed(range(_WRITE_ATTEMPTS)):
            writer = self._create(path, len(data), durable=durable, replace=replace)
            try:
                writer.write_at(0, [memoryview(data)])
                writer.finish()
                break
            except BaseException as error:
                writer.abort()
                if not (left and is_transient(error)):
                    raise
        self._forget(path)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        place = self._place(path)
        self._forget(path)
        self._call(path, lambda _: self._client().delete(place, True))

    def close(self) -> None:
        """Forget the connection; hdfs-native closes its own."""
        self._watcher.close()
        with self._lock:
            self._connected = None
            self._readers.clear()

    def _place(self, path: str, *, folder: bool = False) -> str:
        checked = paths.clean_folder(path, self.url) if folder else paths.clean(path, self.url)
        return f"{self._root}/{checked}" if checked else self._root

    def _client(self) -> Client:
        """Return the client. Called by companions only: making one may look for names and tickets."""
        from hdfs_native import Client

        with self._lock:
            if self._connected is None:
                self._connected = Client(self._service, self._properties or None)
            return self._connected

    def _reader(self, path: str, place: str) -> FileReader:
        with self._lock:
            found = self._readers.get(path)
        if found is None:
            found = self._client().read(place)
            with self._lock:
                self._readers[path] = found
                if len(self._readers) > _MOST_READERS:
                    self._readers.popitem(last=False)
        return found

    def _forget(self, path: str) -> None:
        with self._lock:
            self._readers.pop(path, None)

    def _check_no_folder(self, path: str, place: str) -> None:
        try:
            status = self._call(path, lambda _: self._client().get_file_info(place))
        except NotFound:
            return
        if status.isdir:
            raise AlreadyExists(self.url, path, "is a folder: choose another name")

    def _call(self, path: str, work: Callable[[CallProgress], T], cancel: Cancellation | None = None) -> T:
        """Call hdfs-native, watched; all its errors become ours."""
        try:
            return self._watcher.run(path, work, cancel)
        except (StoreError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            raise from_hdfs(error, self.url, path) from error


# --- What hdfs-native raises, in our errors. It tells most of it in words only: those of Hadoop's exceptions.

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
