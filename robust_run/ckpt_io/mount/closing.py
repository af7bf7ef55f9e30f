"""When a file that is written through a mount becomes what its name stands for, and when it does not.

* Who opens a name writes a file of its own, also while others write the same name, as ranks do that save the same state: each one
  that is ended in good order is committed as a whole, and the last one is what the name stands for. Nothing of two is mixed.
* Every author has closed it (see `authors`), or one that lives synced it: it is committed, durable and as a whole.
* An author was killed: what was written since the last commit is dropped. The name stands for what it stood for before, or for
  nothing. What was synced stays: `fsync` says that the file is worth keeping as it is then, so who syncs in the middle of a save
  shows half of it, and should write under another name and rename.
* Its format says that it is not whole (see `wholeness`): an exception that unwound its writer closed it, for one. Closing it is
  an error, and what was written is kept under a name that is no checkpoint's, `<name>.<number>.unfinished`, from which it can be
  renamed. `fsync` in the middle of such a file waits for its end: nothing is shown, and nothing is an error.
* It was closed and nothing was written to it: it is an empty file if its name stood for nothing or for an empty one, else the
  name stands for what it stood for. Whether its writer is unwound by an exception before its first byte (numpy.save makes the
  file first) or wants an empty file cannot be seen; an empty one in the place of a checkpoint would lose that, and who wants it
  can remove the file before, or sync the empty one. Closing is no error: parents close a copy before their child writes.
* It was renamed while it was being written: it gets the new name when it is committed; until then both names stand for what
  they stood for.
* Whether an author lives cannot be seen (another PID namespace, a server that is not allowed to look): it is committed if its
  format shows that nothing is missing; otherwise closing it is an error, which a living program hears, and what was written is
  kept as `.unfinished`. Nothing vanishes, nothing is guessed.

The log of the mount has a line for each file that was dropped or kept aside.
"""

from __future__ import annotations

import errno
import threading
from typing import Any

from robust_run.ckpt_io.address import Address, join, split
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.mount.authors import Authors
from robust_run.ckpt_io.mount.callers import Caller, Callers
from robust_run.ckpt_io.mount.moving import keep, move
from robust_run.ckpt_io.mount.operations import ReadOnlyOperations, log
from robust_run.ckpt_io.mount.saving_file import Saving, SavingFile
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.types import LogicalFile, SavePlan
from robust_run.ckpt_io.seen import UNFINISHED
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.opening import open_store
from robust_run.store.paths import parent


class Written:
    """A file that is open for writing, and its authors."""

    def __init__(
        self, file: SavingFile, opener: int | None, name: str = "", turn: threading.Lock | None = None
    ) -> None:
        self.file = file
        self.name = name
        """Of the mount: what it was opened as, or renamed to."""
        self.authors = Authors(opener)
        self.lock = threading.Lock()
        """For the authors."""
        self.processes: dict[int, int | None] = {}
        """Process of each thread that wrote."""
        self.turn = turn or threading.Lock()
        """For committing: of all that are written under one name."""
        self.is_overtaken = False
        """Another one was committed under its name while it was being written."""

    @property
    def has_bytes(self) -> bool:
        """Whether some are not committed."""
        return not self.file.is_committed and not self.file.is_empty


class ClosingOperations(ReadOnlyOperations):
    """What happens to a file from its first byte until it is closed."""

    def __init__(self, *arguments: Any, saving: Saving, callers: Callers | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.saving = saving
        self.callers = callers or Callers()
        self._written: dict[str, tuple[Written, ...]] = {}
        """Files that are being written, by path, in the order in which they were begun."""
        self._made: dict[str, float] = {}
        """Folders that were made and hold nothing yet: stores know no empty folders."""

    def begin(self, name: str, address: Address) -> int:
        """Begin a file. What is there under its name stays there until it is committed; so does what others are writing."""
        opener = self.callers.process_of(self.calling_thread())
        others = self._written.get(name, ())
        written = Written(
            SavingFile(address, self.saving, open_checkpoint), opener, name, others[0].turn if others else None
        )
        self.put(written)
        return self.keep(written)

    def writers(self, name: str) -> list[Written]:
        """Return what is being written under a name and has not failed; what was begun last is the last."""
        return [each for each in self._written.get(name, ()) if not each.file.has_failed]

    def put(self, written: Written) -> None:
        """Have a file found by its name."""
        with self._lock:
            self._written[written.name] = (*self._written.get(written.name, ()), written)

    def take(self, written: Written) -> None:
        """Have a file not found by its name any more."""
        with self._lock:
            left = tuple(each for each in self._written.get(written.name, ()) if each is not written)
            if left:
                self._written[written.name] = left
            else:
                self._written.pop(written.name, None)

    def calling_thread(self) -> int:
        """Return the thread that the kernel says is calling; 0 if it cannot be named here."""
        import mfusepy

        return int(mfusepy.fuse_get_context()[2])

    def write_from(self, data: memoryview, offset: int, fh: int) -> int:
        """Take bytes."""
        written = self._handle(fh)
        self._note_author(written)
        with self.said(written.file.address.name):
            return written.file.write(data, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Announce that writing is possible; `DirectFuse` calls `write_from`."""
        raise NotImplementedError

    def truncate_open(self, written: Written, length: int, *, by_author: bool) -> None:
        """Cut a file that is being written. `by_author`: by a descriptor of it, not by its name."""
        if by_author:
            self._note_author(written)
        elif 0 < length < written.file.size_bytes:  # refused, as below, and who writes the file has no part in it
            raise OSError(errno.EINVAL, "a file that is being written is not cut by its name")
        with self.said(written.name):
            written.file.truncate(length)

    def flush(self, path: str, fh: int) -> int:  # noqa: ARG002
        """A descriptor was closed, by a process that lives or by one that ends."""
        written = self._handles.get(fh)
        if not isinstance(written, Written):
            return 0
        caller = self.callers.caller(self.calling_thread())
        has_another = self._has_another(written, caller)
        end = written.file.end if caller.ending in ("exited", "unknown") else "unknown"
        with written.lock:
            verdict = written.authors.closed(caller, has_another=has_another, has_bytes=written.has_bytes, end=end)
        if verdict == "give up":
            self._give_up(written)
            if caller.ending == "alive":  # it wrote, and another author was killed
                raise OSError(errno.EIO, written.authors.fate)
        elif verdict == "refuse":
            raise OSError(errno.EIO, f"{caller.words}: it is not known whether it was all")
        elif verdict == "commit" and (written.file.has_failed or not written.file.is_empty):
            # Empty: shells close a copy before anything is written.
            self._commit(written)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        """Make it durable, and so visible: not yet, if its format shows that more has to come."""
        written = self._handles.get(fh)
        if isinstance(written, Written) and (written.file.has_failed or written.file.end != "cut off"):
            self._commit(written)
        return 0

    def release(self, path: str, fh: int) -> int:
        """The last descriptor is closed."""
        written = self._handles.get(fh)
        if not isinstance(written, Written):
            return super().release(path, fh)
        name = self._path_of(written)
        try:
            if name and not written.file.has_failed and not written.file.is_committed:
                self._last_closed(written, name)
        finally:
            self.take(written)
            self.drop(fh)
            written.file.abort()
        return 0

    def destroy(self, path: str) -> None:
        """The mount is gone: what was not closed was not saved."""
        for written in [each for all_of_them in self._written.values() for each in all_of_them]:
            written.file.abort()
        super().destroy(path)

    def seen(self, *urls: str) -> None:
        """Look at these again: they were changed."""
        for url in urls:
            self.tree.shelf.changed(url)

    def is_filled(self, name: str) -> None:
        """The folders above a file exist in the store now."""
        while name:
            name = parent(name)
            self._made.pop(name, None)

    def _last_closed(self, written: Written, name: str) -> None:
        authors, file = written.authors, written.file
        verdict = authors.released(has_bytes=written.has_bytes, end=file.end, is_new=self.is_absent(name))
        if verdict == "commit":
            self.commit_closed(written)
        elif verdict == "keep aside":
            with self.said(name):
                aside = file.keep_aside(self._kept_aside)
            log(
                f"{name}: {file.size_bytes} bytes were written, and it cannot be told whether that was all: no process that can "
                "be seen from here closed or synced it, and its format does not show its end. "
                f"It is kept as {aside}: rename that if it is whole. What the name stood for stays. "
                "Sync files before closing them, or serve the mount where the programs run"
            )

    def _has_bytes(self, name: str) -> bool:
        """Whether a name stands for a file that is not empty, or for one that cannot be read now."""
        try:
            file = self.tree.look(name).file
        except NotFound:
            return False
        except (CheckpointError, StoreError):
            return True
        return file is not None and file.size_bytes > 0

    def is_absent(self, name: str) -> bool:
        """Whether a name stands for nothing."""
        raise NotImplementedError

    def _kept_aside(self, plan: SavePlan, file: LogicalFile) -> str:
        root, name = split(plan.url)
        aside = f"{name}.{plan.uuid[:8]}{UNFINISHED}"
        keep(plan, file, Address(join(root, aside), plan.also), self.saving, open_store)
        self.seen(join(root, aside))
        return aside

    def _give_up(self, written: Written) -> None:
        name, file, fate = self._path_of(written), written.file, written.authors.fate
        if not file.has_failed and not file.is_committed:
            shown = name or file.address.name
            log(
                f"{shown}: not saved: {fate} after {file.size_bytes} bytes. What the name stood for before stays as it was"
            )
        file.give_up(f"{fate} while it was writing")

    def commit_closed(self, written: Written) -> None:
        """Commit what all of its authors have closed. Raises OSError."""
        file = written.file
        if not file.is_empty or file.is_committed or file.has_failed or not self._has_bytes(written.name):
            self._commit(written)
            return
        log(
            f"{written.name}: not saved: it was closed and nothing was written to it. What the name stood for stays; "
            "remove it first to have an empty file"
        )
        file.give_up("nothing was written to it")

    def _commit(self, written: Written) -> None:
        file = written.file
        name = self._path_of(written)
        with written.turn, self.said(file.address.name):
            if file.commit(self._kept_aside):
                for other in self._written.get(written.name, ()):
                    if other is not written:
                        other.is_overtaken, other.file.is_replaced = True, other.file.is_committed
            if file.goal is not None:
                self._move_to_goal(file, file.goal)
            # Also where another thread committed it: that one may not have come to this yet.
            self.seen(file.address.url)
            self.is_filled(name)

    def _move_to_goal(self, file: SavingFile, goal: Address) -> None:
        old = file.address
        with open_checkpoint(old) as source:
            move(source, old, goal, self.saving, open_store)
        file.address, file.goal = goal, None
        self.seen(old.url)

    def _has_another(self, written: Written, caller: Caller) -> bool:
        """Whether who closes a descriptor has a copy of it. One of another opening of the same name looks alike."""
        name = self._path_of(written)
        if caller.ending != "alive" or caller.process is None or not name:
            return False
        openings = [each for each in self._written.get(name, ()) if each.authors.has(caller.process)]
        return openings == [written] and self.callers.has_another(caller.process, f"/{name}")

    def _note_author(self, written: Written) -> None:
        thread = self.calling_thread()
        if thread not in written.processes:
            written.processes[thread] = self.callers.process_of(thread)
        with written.lock:
            written.authors.wrote(written.processes[thread])

    def _handle(self, fh: int) -> Written:
        written = self._handles.get(fh)
        if not isinstance(written, Written):
            raise OSError(errno.EBADF, "not open for writing")
        return written

    def _path_of(self, written: Written) -> str:
        return written.name if written in self._written.get(written.name, ()) else ""
