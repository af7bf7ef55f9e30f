"""What the kernel asks of a mount that takes new files, and our answers.

Each file is a checkpoint of one logical file. It is there once it is closed in good order (see `closing`), and as a whole: until
then, a process that opens its name sees what was there before.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import closing
from typing import Any

from robust_run.ckpt_io.address import Address, join
from robust_run.ckpt_io.mount.closing import ClosingOperations, Written
from robust_run.ckpt_io.mount.moving import move, remove
from robust_run.ckpt_io.mount.operations import attributes, inner
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.removing import is_link
from robust_run.ckpt_io.views.tree import TreeNode
from robust_run.store.errors import NotFound
from robust_run.store.opening import open_store
from robust_run.store.paths import parent

_WRITES = os.O_WRONLY | os.O_RDWR


class WritableOperations(ClosingOperations):
    """A tree of checkpoints that takes new files."""

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        """What `stat` shows: of a file that is being written, how far it is."""
        handle = self._handles.get(fh) if fh is not None else None
        written = [handle] if isinstance(handle, Written) else self.writers(inner(path or ""))
        if written and not written[-1].file.has_failed:
            return self.file_attributes(written[-1].file.size_bytes, time.time())
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
        written = [name for name in list(self._written) if self.writers(name)]
        new = [name for name in (*written, *self._made) if parent(name) == folder]
        return list(dict.fromkeys([*found, *(name.rpartition("/")[2] for name in new)]))

    def open(self, path: str, flags: int) -> int:
        """Open for reading, or an existing file to be written anew."""
        if not flags & _WRITES:
            for written in self.writers(inner(path)):
                if written.authors.are_done:
                    self.commit_closed(written)
            return super().open(path, flags)
        if not flags & os.O_TRUNC:
            raise OSError(errno.ENOTSUP, "files are written anew, from front to back; nothing is changed in place")
        return self.create(path, 0o644, flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:  # noqa: ARG002
        """Begin a file."""
        with self.said(path):
            return self.begin(inner(path), self._address(inner(path)))

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        """Cut a file that is being written. One that is there is only opened anew: EOPNOTSUPP, nothing is changed in place."""
        handle = self._handles.get(fh) if fh is not None else next(reversed(self.writers(inner(path or ""))), None)
        if isinstance(handle, Written):
            self.truncate_open(handle, length, by_author=fh is not None)
            return 0
        if path is None:
            raise OSError(errno.EBADF, "not open for writing")
        with self.said(path):
            node = self.tree.look(inner(path))
        if node.file is None or length != node.file.size_bytes:
            raise OSError(errno.EOPNOTSUPP, "nothing is changed in place: open the file to write it anew")
        return 0

    def rename(self, old: str, new: str) -> int:
        """Give a file another name; what had that name is replaced. One that is being written gets it when it is committed."""
        with self.said(old):
            target = self._address(inner(new))
            if is_link(target.url):
                raise OSError(errno.EPERM, "a link: what it leads to is not replaced under this name")
            writing = []
            for written in self.writers(inner(old)):
                if written.authors.are_done:
                    self.commit_closed(written)
                    self.take(written)
                else:
                    writing.append(written)
            halves = [each for each in writing if not each.file.is_committed]
            if halves and not any(each.is_overtaken for each in halves):
                self._give_name(writing, target, inner(new))
                return 0
            opened = self._one_file(inner(old))
            move(opened, self._address(inner(old)), target, self.saving, open_store)
            self._give_name(writing, target, inner(new))
            self.seen(self.tree.url_of(inner(old)), target.url)
            self.is_filled(inner(new))
        return 0

    def _give_name(self, writing: list[Written], target: Address, name: str) -> None:
        """Have files that are being written go by another name, now or, what is not committed yet, when it is."""
        for replaced in self._written.get(name, ()):
            self.take(replaced)
            replaced.file.forget()
        for written in writing:
            self.take(written)
            written.name = name
            if written.file.is_committed:
                written.file.address = target
            else:
                written.file.goal = target
            self.put(written)

    def unlink(self, path: str) -> int:
        """Remove a file. Who is writing it goes on, to nowhere."""
        with self.said(path):
            removed = self.writers(inner(path))
            for written in removed:
                self.take(written)
                written.file.forget()
            is_saved = any(each.file.is_committed for each in removed)
            if removed and not is_saved and self.is_absent(inner(path)):
                return 0
            self._one_file(inner(path))
            remove(self._address(inner(path)), open_store)
            self.seen(self.tree.url_of(inner(path)))
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

    def _address(self, name: str) -> Address:
        """Return where a new file goes. Raises OSError (EROFS) within a checkpoint, which nothing can be added to."""
        folder = parent(name)
        if folder not in self._made and self.tree.look(folder).opened is not None:
            raise OSError(errno.EROFS, "a checkpoint takes no more files")
        also = tuple(join(root, folder) if folder else root for root in self.saving.also)
        return Address(self.tree.url_of(name), also)

    def _one_file(self, name: str) -> Checkpoint:
        """Return the checkpoint that a file is. Raises OSError (EPERM) for a file that is only a part of one."""
        node: TreeNode = self.tree.look(name)
        if node.opened is None or not node.opened.is_one_file or node.opened.url != self.tree.url_of(name):
            raise OSError(errno.EPERM, "part of a checkpoint, or a folder")
        if is_link(node.opened.url):
            raise OSError(errno.EPERM, "a link: what it leads to has a name of its own")
        source = node.opened.source
        assert isinstance(source, Checkpoint)
        return source

    def is_absent(self, name: str) -> bool:
        """Whether a name stands for nothing."""
        try:
            self.tree.look(name)
        except NotFound:
            return True
        return False
