"""The words of stores: a folder somewhere, what lies in it, and a file that is being written. Plain data and protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from robust_run.store.cancelling import Cancellation


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One name in a folder."""

    name: str
    """The last part of its path."""
    size_bytes: int
    """0 for a folder."""
    is_folder: bool
    modified_s: float | None = None
    """Seconds since the epoch by the store's clock; None where the store does not say."""
    is_link: bool = False
    """A symbolic link; all else is said of what it leads to."""


Kind = Literal["file", "folder", "link", "other"]
"""other: a pipe, a socket, a device."""


class Walked(msgspec.Struct, frozen=True, kw_only=True):
    """Something below a folder."""

    path: str
    """From that folder on. As it is: it may be none that `paths.clean` accepts."""
    kind: Kind
    size_bytes: int = 0
    """0 for what is no file."""
    modified_s: float | None = None
    tag: str = ""
    """Another one for other content (ETag), where the store has such."""
    target: str = ""
    """What a symbolic link says."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to talk to a store. The defaults suit all of them."""

    connect_s: float = 10.0
    """Seconds to wait for a connection."""
    stall_s: float = 10.0
    """Seconds without a single byte after which a read or write is given up as stalled."""
    threads: int | None = None
    """How many streams to run at once; None: what suits the kind of store."""
    token: str | None = None
    """Bearer token for HTTP. Never sent to another origin that a redirect names."""
    headers: dict[str, str] = {}
    """More headers for HTTP; like the token, for the URL's own origin only."""
    ca_file: str | None = None
    """Certificates to trust for HTTPS instead of the system's."""
    one_version: bool = True
    """Whether all reads of a file must be of one content of it, as far as the store tells. False: who reads verifies it all."""
    extra: dict[str, str] = {}
    """Passed on to hdfs-native (Hadoop properties) or to the fsspec file system (its arguments)."""


class Writer(Protocol):
    """A file that is being written, and that no reader sees before `finish`.

    Raises of all methods but `abort`: `StoreError`. After an error only `abort` may be called.
    """

    @property
    def any_order(self) -> bool:
        """Whether pieces may come in any order and from several threads. Else: strictly ascending, one at a time."""
        ...

    def write_at(self, offset_bytes: int, buffers: Sequence[memoryview]) -> None:
        """Write the buffers, one after the other, from an offset on."""
        ...

    def finish(self) -> None:
        """Make the file visible, whole and (if asked for) durable under its name."""
        ...

    def abort(self) -> None:
        """Leave nothing behind, if possible. Never raises; does nothing after `finish`. All writes must have returned."""
        ...


class Store(Protocol):
    """One folder (or prefix) somewhere. Paths are relative, '/'-separated and checked (`paths.clean`). Safe to use from threads.

    All methods raise `StoreError`: `NotFound`, `AccessDenied`, `Unavailable`, `Stalled`...; `BadPath` for a path that is none.
    """

    @property
    def url(self) -> str:
        """The folder, without credentials: for people, and for messages."""
        ...

    @property
    def writable(self) -> bool:
        """Whether writing can work at all; it may still be refused."""
        ...

    @property
    def threads(self) -> int:
        """How many streams at once get the most out of it."""
        ...

    def read_into(
        self, path: str, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation | None = None
    ) -> None:
        """Fill all buffers with the bytes from an offset on. `ShortRead` where the file ends before that.

        `cancel` ends it early with `Cancelled`, at once over the network. Raises ValueError for a buffer that is not writable.
        """
        ...

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        """Return a whole file as it is now. `TooLarge` where it has more than the limit, before that much was read."""
        ...

    def size_bytes(self, path: str) -> int:
        """Return the length of a file."""
        ...

    def list(self, path: str = "") -> list[Entry]:
        """Return what a folder holds, by name. A folder that is not there is `NotFound` (object stores: an empty one is, too)."""
        ...

    def walk(self, path: str = "") -> tuple[Walked, ...]:
        """Return everything below a folder, at any depth, by path; links are not followed, and nothing is left out.

        A folder that is not there is `NotFound`. Where a store has no folders (object stores), those are told that are named.
        """
        ...

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> Writer:
        """Begin a file. Folders above it are made; a file of that name is replaced at `finish` and not before.

        With a size, what is not written up to it reads as zeros where `any_order` is true, and is an error elsewhere.
        """
        ...

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:
        """Write a small file at once: who reads sees the old one, the new one or none. `AlreadyExists` unless `replace`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. What is not there is fine.

        A symbolic link is removed itself; what lies behind one in the middle of a path is not removed: `StoreError`.
        """
        ...

    def close(self) -> None:
        """Drop connections. Reads that are under way may fail."""
        ...
