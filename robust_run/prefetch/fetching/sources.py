"""Where blocks come from. The origin is a range of one object on any store; other nodes are sources of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from robust_run.errors import UserError
from robust_run.prefetch.rules.types import FetchLimits, Priority
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import StoreError, is_transient
from robust_run.store.opening import open_store
from robust_run.store.paths import joined
from robust_run.store.types import Store, StoreOptions


class BlockSource(Protocol):
    """Somewhere that blocks can be asked for. Called from many threads. Nothing it sends is believed."""

    @property
    def name(self) -> str:
        """For people; without credentials."""
        ...

    def offers(self, start_block: int, count: int, priority: Priority) -> float | None:
        """Say whether to ask it for these blocks: 0.0: now. More: ask me again in so many seconds. None: it does not have them.

        Called under a lock: answers from memory, at once. A source that lets others wait must end that by itself.
        """
        ...

    def read_into(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        """Fill all buffers with the image's bytes from an offset on, or raise. Ends soon after `cancel` was called."""
        ...


class StoreSource:
    """The origin: an image in one object on a store."""

    def __init__(self, store: Store, path: str, image_offset_bytes: int = 0) -> None:
        """`path`: of the object in the store; `image_offset_bytes`: where in it the image begins."""
        self._store, self._path, self._offset_bytes = store, path, image_offset_bytes

    @property
    def name(self) -> str:
        """The store's URL and the path."""
        return f"{self._store.url.rstrip('/')}/{self._path}"

    def offers(self, start_block: int, count: int, priority: Priority) -> float | None:
        """Everything, now."""
        del start_block, count, priority
        return 0.0

    def read_into(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        """Fill the buffers. Raises `StoreError`."""
        self._store.read_into(self._path, self._offset_bytes + offset_bytes, buffers, cancel)

    def close(self) -> None:
        """Drop connections. Reads that are under way may fail."""
        self._store.close()


def split(image_url: str) -> tuple[str, str]:
    """Return the URL of an image's folder and its name in it. Raises `UserError` where there is no name."""
    if "://" not in image_url:
        folder, _slash, name = image_url.rpartition("/")
        folder = folder or ("/" if image_url.startswith("/") else ".")
    else:
        parts = urlsplit(image_url)
        above, _slash, name = parts.path.rpartition("/")
        folder = joined(parts._replace(path=above or "/"))
    if not name:
        raise UserError(f"{image_url!r} names a folder: give the path or URL of an image file")
    return folder, name


def origin(
    image_url: str, image_offset_bytes: int, limits: FetchLimits, options: StoreOptions | None = None
) -> StoreSource:
    """Return the source of an image's URL. Raises `UserError` for a URL that cannot be one."""
    given = options or StoreOptions()
    folder, name = split(image_url)
    patient = StoreOptions(
        connect_s=min(given.connect_s, limits.stall_s),
        stall_s=min(given.stall_s, limits.stall_s),
        threads=limits.width + limits.demand_width,
        token=given.token,
        headers=given.headers,
        ca_file=given.ca_file,
        # Each block is held against the block map: another copy of the image (a mirror's, one that was stored anew) is as good.
        one_version=False,
        extra=given.extra,
    )
    return StoreSource(open_store(folder, patient), name, image_offset_bytes)


def may_work_later(error: BaseException) -> bool:
    """Whether asking the same source again can help: it was busy, silent or gone, and did not say no."""
    return is_transient(error) or not isinstance(error, StoreError)
