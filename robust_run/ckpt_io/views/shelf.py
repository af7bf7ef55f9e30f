"""Checkpoints that are open: opened once for all readers, opened again when saved anew, closed when unused."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from robust_run.ckpt_io.address import split
from robust_run.ckpt_io.errors import CheckpointError, NotACheckpoint
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH
from robust_run.ckpt_io.views.safetensors_view import safetensors_view
from robust_run.ckpt_io.views.types import ViewSource, VirtualFile, whole_file
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.types import Store

#: Of a manifest: its first line, with the digest of the rest.
_HEAD_BYTES = 64
#: So many are kept open though no process reads them.
KEPT = 32


@dataclass
class OpenCheckpoint:
    """A checkpoint that is open, and the files that it is seen as."""

    url: str
    source: ViewSource
    head: bytes
    """The start of its manifest: another one means that it was saved anew."""
    files: dict[str, VirtualFile]
    refused: str = ""
    """Why it has no safetensors view; empty if it has one, or has no tensors."""
    checked_s: float = 0.0
    users: int = 0
    is_current: bool = field(default=True)

    @property
    def is_one_file(self) -> bool:
        """Whether it is a file that was imported or written under the checkpoint's own name: it is shown as that file."""
        manifest = self.source.manifest
        return len(manifest.files) == 1 and not manifest.blobs and manifest.files[0].name == split(self.url)[1]


def files_of(source: ViewSource, name: str) -> tuple[dict[str, VirtualFile], str]:
    """Return the files that a checkpoint is seen as, by name, and why there is no safetensors view, if so."""
    manifest = source.manifest
    files = {file.name: whole_file(index, file) for index, file in enumerate(manifest.files)}
    view_name = f"{name}.safetensors"
    if not manifest.tensors or view_name in files:
        return files, ""
    try:
        files[view_name] = safetensors_view(manifest, view_name)
    except CheckpointError as error:
        return files, str(error)
    return files, ""


class Shelf:
    """Opens checkpoints by their URL. Safe to use from threads."""

    def __init__(
        self,
        opener: Callable[[str], ViewSource],
        stores: Callable[[str], Store],
        now_s: Callable[[], float],
        refresh_s: float = 1.0,
    ) -> None:
        """`opener` opens a checkpoint; what was found is believed for `refresh_s`."""
        self._opener, self._stores, self._now_s, self._refresh_s = opener, stores, now_s, refresh_s
        self._lock = threading.RLock()
        self._opened: OrderedDict[str, OpenCheckpoint] = OrderedDict()
        self._absent: OrderedDict[str, float] = OrderedDict()
        """When it was seen that there is no checkpoint."""

    def at(self, url: str) -> OpenCheckpoint | None:
        """Return the checkpoint at a URL, None if there is none. Raises CheckpointError, StoreError if it cannot be read."""
        with self._lock:
            now_s = self._now_s()
            if now_s - self._absent.get(url, -1e9) < self._refresh_s:
                return None
            opened = self._opened.get(url)
            if opened is not None and now_s - opened.checked_s < self._refresh_s:
                return opened
            head = self._head(url)
            if head is None:
                self._forget(url)
                self._note_absent(url, now_s)
                return None
            if opened is None or opened.head != head:
                self._forget(url)
                opened = self._open(url, head)
            opened.checked_s = now_s
            self._absent.pop(url, None)
            self._opened[url] = opened
            self._opened.move_to_end(url)
            self._close_unused()
            return opened

    def changed(self, url: str) -> None:
        """Look again the next time, in spite of what was seen a moment ago."""
        with self._lock:
            self._absent.clear()
            if url in self._opened:
                self._opened[url].checked_s = -1e9

    def reopen(self, opened: OpenCheckpoint) -> None:
        """Open it anew for the next who asks."""
        with self._lock:
            if self._opened.get(opened.url) is opened:
                self._forget(opened.url)

    def reopen_all(self) -> None:
        """Open everything anew for the next who asks; who reads goes on with what it has."""
        with self._lock:
            self._absent.clear()
            for url in list(self._opened):
                self._forget(url)

    def use(self, opened: OpenCheckpoint) -> None:
        """Keep it open until `give_back`."""
        with self._lock:
            opened.users += 1

    def give_back(self, opened: OpenCheckpoint) -> None:
        """One user less."""
        with self._lock:
            opened.users -= 1
            if not opened.users and not opened.is_current:
                _close(opened)

    def close(self) -> None:
        """Close all, also those in use."""
        with self._lock:
            for opened in self._opened.values():
                _close(opened)
            self._opened.clear()

    def _open(self, url: str, head: bytes) -> OpenCheckpoint:
        source = self._opener(url)
        files, refused = files_of(source, split(url)[1])
        return OpenCheckpoint(url=url, source=source, head=head, files=files, refused=refused)

    def _head(self, url: str) -> bytes | None:
        """Return the start of the manifest; None if there is none."""
        head = bytearray(_HEAD_BYTES)
        store = self._stores(url)
        try:
            store.read_into(MANIFEST_PATH, 0, [memoryview(head)])
        except (NotFound, NotACheckpoint):
            return None
        finally:
            store.close()
        return bytes(head)

    def _note_absent(self, url: str, now_s: float) -> None:
        self._absent[url] = now_s
        self._absent.move_to_end(url)
        while len(self._absent) > 4096:
            self._absent.popitem(last=False)

    def _forget(self, url: str) -> None:
        opened = self._opened.pop(url, None)
        if opened is not None:
            opened.is_current = False
            if not opened.users:
                _close(opened)

    def _close_unused(self) -> None:
        for url in [url for url, opened in self._opened.items() if not opened.users][:-KEPT]:
            self._forget(url)


def _close(opened: OpenCheckpoint) -> None:
    with contextlib.suppress(CheckpointError, StoreError):
        opened.source.close()
