"""The file systems of fsspec: S3, GCS, Azure, SFTP, memory... Calls are watched, as many of them know no time limit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from robust_run.errors import UserError
from robust_run.store import paths
from robust_run.store.buffers import byte_views, scatter, total_bytes
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import AlreadyExists, NotFound, ShortRead, StoreError, TooLarge, Unavailable, from_os_error
from robust_run.store.other_writing import SLOWEST_BYTES_PER_S, FsspecWriter
from robust_run.store.types import Entry, Kind, StoreOptions, Walked
from robust_run.store.watching import CallProgress, CallWatcher

T = TypeVar("T")

_MOST_THREADS = 16
#: So long a store may take to list everything below a folder: fsspec says nothing before it has all of it.
_WALK_S = 600.0
#: Where a file appears at once, when it is whole. Elsewhere it is written under another name and renamed.
_WHOLE_AT_ONCE = frozenset("s3 s3a gs gcs az abfs abfss adl oss oci cos obs tos".split())
#: Libraries whose errors are those of the network.
_NETWORK_LIBRARIES = frozenset("aiohttp botocore aiobotocore google gcsfs azure requests urllib3 paramiko".split())


class FsspecStore:
    """A folder, or a prefix, of an fsspec file system."""

    writable = True

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Raises `UserError` where fsspec, or the library for this kind of URL, is not installed.

        Some libraries connect at once: raises `StoreError` where that fails.
        """
        self.url = paths.shown(url)
        self.threads = options.threads or _MOST_THREADS
        self._watcher = CallWatcher(self.url, options.stall_s)
        try:
            from fsspec.core import url_to_fs

            self._files, root = url_to_fs(url, skip_instance_cache=True, **options.extra)
        except (ImportError, ValueError, TypeError) as error:
            raise UserError(f"{self.url} cannot be opened through fsspec: {error}") from error
        except OSError as error:
            raise from_os_error(error, self.url, "") from error
        except Exception as error:  # a library may raise anything
            raise StoreError(self.url, "", f"it cannot be opened: {type(error).__name__}: {error}") from error
        self._root = str(root).rstrip("/")
        kinds = self._files.protocol
        self._is_whole_at_once = bool(
            _WHOLE_AT_ONCE & {kinds} if isinstance(kinds, str) else _WHOLE_AT_ONCE & set(kinds)
        )

    def read_into(
        self, path: str, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation | None = None
    ) -> None:
        """Fill all buffers; see `Store`."""
        views, place = byte_views(buffers, to_fill=True), self._place(path)
        wanted = total_bytes(views)
        if not wanted:
            return

        def read(progress: CallProgress) -> None:
            data = self._files.cat_file(place, start=offset_bytes, end=offset_bytes + wanted)
            if len(data) != wanted:
                raise ShortRead(self.url, path, offset_bytes, wanted, len(data))
            with progress.touching():
                scatter(data, views, 0)

        try:
            self._call(path, read, cancel, more_s=wanted / SLOWEST_BYTES_PER_S)
        except StoreError as error:
            if "416" in error.what or "InvalidRange" in error.what:  # how servers say that a range begins past the end
                raise ShortRead(self.url, path, offset_bytes, wanted, 0) from error
            raise

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        """Return a whole file as it is now; see `Store`."""
        place, size_bytes = self._place(path), self.size_bytes(path)
        if size_bytes > limit_bytes:
            raise TooLarge(self.url, path, f"has {size_bytes} bytes: at most {limit_bytes} are read")
        read: Callable[[CallProgress], bytes] = lambda _: self._files.cat_file(place)  # noqa: E731 (named for its type)
        found = bytes(self._call(path, read, more_s=size_bytes / SLOWEST_BYTES_PER_S))
        if len(found) > limit_bytes:
            raise TooLarge(self.url, path, f"grew while it was read: at most {limit_bytes} bytes are read")
        return found

    def size_bytes(self, path: str) -> int:
        """Return the length of a file; see `Store`."""
        place = self._place(path)
        found: dict[str, Any] = self._call(path, lambda _: self._fresh().info(place))
        if found.get("type") == "directory":
            raise NotFound(self.url, path, "is a folder, not a file")
        return _size(found)

    def list(self, path: str = "") -> list[Entry]:
        """Return what a folder holds; see `Store`."""
        place = self._place(path, folder=True)
        items: list[dict[str, Any]] = self._call(path, lambda _: self._fresh().ls(place, detail=True))
        found = {}
        for item in items:
            where = str(item["name"]).rstrip("/")
            name = where.rpartition("/")[2]
            if where.strip("/") == place.strip("/"):
                if item.get("type") != "directory":
                    raise NotFound(self.url, path, "is a file, not a folder")
                continue  # object stores may have an object for the folder itself
            if paths.is_clean(name):
                found[name] = _entry(name, item)
        return [found[name] for name in sorted(found)]

    def walk(self, path: str = "") -> tuple[Walked, ...]:
        """Return everything below a folder; see `Store`. An object whose name ends with "/" stands for a folder."""
        place = self._place(path, folder=True)
        with_folders = not self._is_whole_at_once  # those of object stores are only the names of what they hold

        def look(_progress: CallProgress) -> dict[str, dict[str, Any]]:
            return dict(self._fresh().find(place, withdirs=with_folders, detail=True))

        found = []
        for name, item in self._call(path, look, more_s=_WALK_S).items():
            below = name.strip("/").removeprefix(place.strip("/"))
            if not below.startswith("/") and place.strip("/"):
                if not below and item.get("type") == "file" and not name.endswith("/"):
                    raise NotFound(self.url, path, "is a file, not a folder")
                continue
            if walked := _walked(below.removeprefix("/") + "/" * name.endswith("/"), item):
                found.append(walked)
        if not found and not self._call(path, lambda _: self._files.isdir(place)):
            raise NotFound(self.url, path, "no such file or folder")
        return tuple(sorted(found, key=lambda walked: walked.path))

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> FsspecWriter:  # noqa: ARG002
        """Begin a file; see `Store`. Pieces must come in order; what is finished is as durable as the service makes it."""
        return FsspecWriter(
            self._files, self._call, self.url, path, self._place(path), self._is_whole_at_once, size_bytes
        )

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:
        """Write a small file at once; without `replace`, in one step where the file system can do that."""
        if not replace:
            place = self._place(path)
            if "mode" in inspect.signature(self._files.pipe_file).parameters and self._is_whole_at_once:
                self._call(path, lambda _: self._files.pipe_file(place, data, mode="create"))
                return
            if self._call(path, lambda _: self._fresh().exists(place)):
                raise AlreadyExists(self.url, path, "exists already")
        writer = self.create(path, len(data), durable=durable)
        try:
            writer.write_at(0, [memoryview(data)])
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        place = self._place(path)
        with suppress(NotFound):
            self._call(path, lambda _: self._files.rm(place, recursive=True))

    def close(self) -> None:
        """Drop the threads that wait for calls."""
        self._watcher.close()

    def _place(self, path: str, *, folder: bool = False) -> str:
        checked = paths.clean_folder(path, self.url) if folder else paths.clean(path, self.url)
        return f"{self._root}/{checked}" if checked else self._root

    def _fresh(self) -> Any:
        """Return the file system, with nothing remembered of what it listed: others write, too."""
        self._files.invalidate_cache()
        return self._files

    def _call(
        self, path: str, work: Callable[[CallProgress], T], cancel: Cancellation | None = None, *, more_s: float = 0.0
    ) -> T:
        """Call fsspec, watched; all its errors become ours."""
        try:
            return self._watcher.run(path, work, cancel, more_s=more_s)
        except StoreError:
            raise
        except Exception as error:
            raise _ours(error, self.url, path) from error


def _size(item: dict[str, Any]) -> int:
    size = item.get("size", item.get("Size"))
    return size if isinstance(size, int) else 0


def _walked(path: str, item: dict[str, Any]) -> Walked | None:
    """Return what a path stands for; None for the folder itself."""
    size_bytes = _size(item)
    is_folder = item.get("type") == "directory" or (path.endswith("/") and not size_bytes)
    if is_folder and not path.strip("/"):
        return None
    path = path.removesuffix("/") if is_folder else path
    kind: Kind = "folder" if is_folder else "link" if item.get("islink") else "file"
    target = item.get("destination", "")
    return Walked(
        path=path,
        kind=kind,
        size_bytes=size_bytes if kind == "file" else 0,
        modified_s=_modified_s(item),
        tag=str(next((item[key] for key in ("ETag", "etag", "generation") if item.get(key)), "")),
        target=target.decode(errors="replace") if isinstance(target, bytes) else str(target),
    )


def _entry(name: str, item: dict[str, Any]) -> Entry:
    is_folder = item.get("type") == "directory"
    size_bytes = 0 if is_folder else _size(item)
    return Entry(name=name, size_bytes=size_bytes, is_folder=is_folder, modified_s=_modified_s(item))


def _modified_s(item: dict[str, Any]) -> float | None:
    modified = next(
        (item[key] for key in ("mtime", "LastModified", "last_modified", "updated", "created") if key in item), None
    )
    stamp = getattr(modified, "timestamp", None)
    return float(stamp()) if stamp is not None else modified if isinstance(modified, int | float) else None


def _ours(error: Exception, url: str, path: str) -> StoreError:
    words = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, OSError):
        found = from_os_error(error, url, path)
        return found if type(found) is not StoreError or error.errno else Unavailable(url, path, words)
    library = type(error).__module__.partition(".")[0]
    if library in _NETWORK_LIBRARIES or isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return Unavailable(url, path, words)
    return StoreError(url, path, words)
