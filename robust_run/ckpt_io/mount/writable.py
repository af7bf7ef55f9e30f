"""What the kernel asks of a mount that takes new files, and our answers.

Each file is a checkpoint of one logical file. It is there once it is closed (by the process that wrote it), fsynced or
renamed, and as a whole: until then, whoever opens its name sees what was there before.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import closing
from typing import Any

from robust_run.ckpt_io.address import Address, join
from robust_run.ckpt_io.mount.moving import move, remove
from robust_run.ckpt_io.mount.operations import ReadOnlyOperations, attributes, inner
from robust_run.ckpt_io.mount.saving_file import Saving, SavingFile
from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
from robust_run.ckpt_io.removing import is_link
from robust_run.ckpt_io.views.tree import Node
from robust_run.store.errors import NotFound
from robust_run.store.opening import open_store
from robust_run.store.paths import parent

_WRITES = os.O_WRONLY | os.O_RDWR


class WritableOperations(ReadOnlyOperations):
    """A tree of checkpoints that takes new files."""

    saving: Saving

    def __init__(self, *arguments: Any, saving: Saving, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.saving = saving
        self._written: dict[str, SavingFile] = {}
        """Files that somebody is writing, by path."""
        self._made: dict[str, float] = {}
        """Folders that were made and hold nothing yet: stores know no empty folders."""

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        """What `stat` shows: of a file that is being written, how far it is."""
        handle = self._handles.get(fh) if fh is not None else None
        saving = handle if isinstance(handle, SavingFile) else self._written.get(inner(path or ""))
        if saving is not None and not saving.has_failed:
            return self.file_attributes(saving.size_bytes, time.time())
        if path is not None and inner(path) in self._made:
            return self.folder_attributes(self._made[inner(path)], is_ours=False)
        return super().getattr(path, fh)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, with those that are being written."""
        folder = inner(path)
        try:
            found = super().names(path)
        except FileNotFoundError:
            if folder not in self._made:
                raise
            found = []
        written = [name for name, saving in list(self._written.items()) if not saving.has_failed]
        new = [name for name in (*written, *self._made) if parent(name) == folder]
        return list(dict.fromkeys([*found, *(name.rpartition("/")[2] for name in new)]))

    def open(self, path: str, flags: int) -> int:
        """Open for reading, or an existing file to be written anew."""
        if not flags & _WRITES:
            saving = self._written.get(inner(path))
            if saving is not None and saving.is_closed and not saving.has_failed:
                self._commit(saving)
            return super().open(path, flags)
        if not flags & os.O_TRUNC:
            raise OSError(errno.ENOTSUP, "files are written anew, from front to back; nothing is changed in place")
        return self.create(path, 0o644, flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:  # noqa: ARG002
        """Begin a file. What is there under its name stays there until it is closed."""
        name = inner(path)
        with self.said(path):
            address = self._address(name)
            before = self._written.get(name)
            if before is not None:
                before.abort()

            def again() -> Checkpoint:
                return open_checkpoint(address)

            saving = SavingFile(address, self.saving, _group_of(_caller()), again)
            self._written[name] = saving
            return self.keep(saving)

    def write_from(self, data: memoryview, offset: int, fh: int) -> int:
        """Take bytes."""
        handle = self._saving(fh)
        with self.said(handle.address.name):
            return handle.write(data, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Announce that writing is possible; `DirectFuse` calls `write_from`."""
        raise NotImplementedError

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        """Cut a file that is being written. One that is there is only opened anew: EOPNOTSUPP, nothing is changed in place."""
        handle = self._handles.get(fh) if fh is not None else self._written.get(inner(path or ""))
        if isinstance(handle, SavingFile):
            handle.truncate(length)
            return 0
        if path is None:
            raise OSError(errno.EBADF, "not open for writing")
        with self.said(path):
            node = self.tree.look(inner(path))
        if node.file is None or length != node.file.size_bytes:
            raise OSError(errno.EOPNOTSUPP, "nothing is changed in place: open the file to write it anew")
        return 0

    def flush(self, path: str, fh: int) -> int:  # noqa: ARG002
        """A descriptor was closed: if by who wrote the file, it is whole. (A child that ends closes its copy, too.)"""
        handle = self._handles.get(fh)
        if isinstance(handle, SavingFile) and _group_of(_caller()) == handle.writer_pid:
            handle.is_closed = True
            if handle.size_bytes:  # shells close a copy before anything is written
                self._commit(handle)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        """Make it durable, and so visible."""
        handle = self._handles.get(fh)
        if isinstance(handle, SavingFile):
            self._commit(handle)
        return 0

    def release(self, path: str, fh: int) -> int:
        """The last descriptor is closed."""
        handle = self._handles.get(fh)
        if not isinstance(handle, SavingFile):
            return super().release(path, fh)
        name = self._path_of(handle)
        try:
            if name:
                self._commit(handle)
        finally:
            if self._written.get(name) is handle:
                self._written.pop(name, None)
            self.drop(fh)
            handle.abort()
        return 0

    def rename(self, old: str, new: str) -> int:
        """Give a file another name; what had that name is replaced."""
        with self.said(old):
            saving = self._written.pop(inner(old), None)
            if saving is not None:
                saving.commit()
                self._seen(saving.address.url)
            opened = self._one_file(inner(old))
            target = self._address(inner(new))
            if is_link(target.url):
                raise OSError(errno.EPERM, "a link: what it leads to is not replaced under this name")
            move(opened, self._address(inner(old)), target, self.saving, open_store)
            self._seen(self.tree.url_of(inner(old)), target.url)
            self._is_filled(inner(new))
        return 0

    def unlink(self, path: str) -> int:
        """Remove a file."""
        with self.said(path):
            saving = self._written.pop(inner(path), None)
            if saving is not None and not saving.is_committed:
                saving.abort()
                if self._is_absent(inner(path)):
                    return 0
            self._one_file(inner(path))
            remove(self._address(inner(path)), open_store)
            self._seen(self.tree.url_of(inner(path)))
        return 0

    def mkdir(self, path: str, mode: int) -> int:  # noqa: ARG002
        """Make a folder: for real when the first file in it is closed."""
        with self.said(path):
            self._address(inner(path))
        self._made[inner(path)] = time.time()
        return 0

    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, "not empty")
        if self._made.pop(inner(path), None) is None:
            with self.said(path):
                if self.tree.look(inner(path)).opened is not None:
                    raise OSError(errno.EPERM, "a checkpoint; robust ckpt prune removes those")
                with closing(open_store(self.tree.url)) as store:
                    if store.list(inner(path)):  # files that are no checkpoints: not shown, and not ours to remove
                        raise OSError(errno.ENOTEMPTY, "not empty")
                    store.remove(inner(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:  # noqa: ARG002
        """Nothing: checkpoints have no modes, and `cp -p` shall work."""
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:  # noqa: ARG002
        """Nothing."""
        return 0

    def utimens(self, path: str, times: Any = None) -> int:  # noqa: ARG002
        """Nothing: a file's time is when it was saved."""
        return 0

    def folder_attributes(self, modified_s: float, *, is_ours: bool) -> dict[str, Any]:
        """Return what `stat` shows: nothing can be added to a checkpoint."""
        return attributes(stat.S_IFDIR | (0o555 if is_ours else 0o755), 4096, modified_s)

    def file_attributes(self, size_bytes: int, modified_s: float) -> dict[str, Any]:
        """Return what `stat` shows."""
        return attributes(stat.S_IFREG | 0o644, size_bytes, modified_s)

    def destroy(self, path: str) -> None:
        """The mount is gone: what nobody closed was not saved."""
        for saving in self._written.values():
            saving.abort()
        super().destroy(path)

    def _commit(self, saving: SavingFile) -> None:
        with self.said(saving.address.name):
            saving.commit()
            # Also where another thread committed it: that one may not have come to this yet.
            self._seen(saving.address.url)
            self._is_filled(self._path_of(saving))

    def _is_filled(self, name: str) -> None:
        """The folders above a file exist in the store now."""
        while name:
            name = parent(name)
            self._made.pop(name, None)

    def _seen(self, *urls: str) -> None:
        for url in urls:
            self.tree.shelf.changed(url)

    def _saving(self, fh: int) -> SavingFile:
        handle = self._handles.get(fh)
        if not isinstance(handle, SavingFile):
            raise OSError(errno.EBADF, "not open for writing")
        return handle

    def _path_of(self, saving: SavingFile) -> str:
        return next((path for path, each in self._written.items() if each is saving), "")

    def _address(self, name: str) -> Address:
        """Return where a new file goes. Raises OSError (EROFS) within a checkpoint, which nothing can be added to."""
        folder = parent(name)
        if folder not in self._made and self.tree.look(folder).opened is not None:
            raise OSError(errno.EROFS, "a checkpoint takes no more files")
        also = tuple(join(root, folder) if folder else root for root in self.saving.also)
        return Address(self.tree.url_of(name), also)

    def _one_file(self, name: str) -> Checkpoint:
        """Return the checkpoint that a file is. Raises OSError (EPERM) for a file that is only a part of one."""
        node: Node = self.tree.look(name)
        if node.opened is None or not node.opened.is_one_file or node.opened.url != self.tree.url_of(name):
            raise OSError(errno.EPERM, "part of a checkpoint, or a folder")
        if is_link(node.opened.url):
            raise OSError(errno.EPERM, "a link: what it leads to has a name of its own")
        source = node.opened.source
        assert isinstance(source, Checkpoint)
        return source

    def _is_absent(self, name: str) -> bool:
        try:
            self.tree.look(name)
        except NotFound:
            return True
        return False


def _caller() -> int:
    import mfusepy

    return int(mfusepy.fuse_get_context()[2])


def _group_of(thread: int) -> int:
    """Return the process of a thread: the kernel names the thread that called."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return thread
