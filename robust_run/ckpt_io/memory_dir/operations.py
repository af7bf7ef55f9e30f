"""What the kernel asks of the folder, and our answers."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from typing import Any

import mfusepy

from robust_run.ckpt_io.memory_dir.attributes import attributes, of_memory, of_storage
from robust_run.ckpt_io.memory_dir.committing import Committing
from robust_run.ckpt_io.memory_dir.kept import Kept
from robust_run.ckpt_io.memory_dir.memory_file import read_into
from robust_run.ckpt_io.memory_dir.name_operations import NameOperations
from robust_run.ckpt_io.memory_dir.names import Names
from robust_run.ckpt_io.memory_dir.open_files import OpenFiles, Reading
from robust_run.ckpt_io.memory_dir.writing import Make, WrittenFile, closed_wrong
from robust_run.ckpt_io.mount.callers import Caller, Callers
from robust_run.ckpt_io.mount.operations import BLOCK_BYTES, inner

_WRITES = os.O_WRONLY | os.O_RDWR


class MemoryOperations(NameOperations):
    """A folder of plain files. Called from several threads."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(
        self,
        layers: Names,
        make: Make,
        free_bytes: Callable[[], int],
        say: Callable[[str], None],
        on_ready: Callable[[], None] = lambda: None,
        callers: Callers | None = None,
    ) -> None:
        """`make`: makes an empty file. `say`: a line for people."""
        super().__init__(layers, OpenFiles())
        self._make, self._free_bytes = make, free_bytes
        self._on_ready = on_ready
        self._callers = callers or Callers()
        self._committing = Committing(layers, say)
        layers.is_written = self._is_written

    def _is_written(self, folder: str) -> bool:
        return any(each.name.startswith(f"{folder}/") for each in self._files.all_written())

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:  # noqa: ARG002
        """The kernel has taken the mount."""
        if config_3 is not None:
            config_3.entry_timeout = config_3.attr_timeout = config_3.negative_timeout = 0.0
            config_3.auto_cache = 1
            config_3.hard_remove = 1
        self._on_ready()

    # --- looking

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        """What `stat` shows: of a file that is being written and is not there yet, how far it is."""
        handle = self._files.get(fh)
        if isinstance(handle, WrittenFile):
            return attributes(stat.S_IFREG | handle.mode, handle.data.size_bytes, time.time_ns())
        if isinstance(handle, Reading):
            return of_memory(handle.kept) if handle.kept is not None else of_storage(os.fstat(handle.descriptor))
        if path is None:
            raise OSError(errno.EBADF, "not open")
        name = inner(path)
        try:
            found = self._layers.find(name)
        except FileNotFoundError:
            writers = self._files.writers(name)
            if not writers:
                raise
            return attributes(stat.S_IFREG | writers[-1].mode, writers[-1].data.size_bytes, time.time_ns())
        return of_memory(found) if isinstance(found, Kept) else of_storage(found)

    def opendir(self, path: str) -> int:
        """Note which folder it is: later calls name only the number."""
        return self._files.keep(inner(path))

    def readdir(self, path: str | None, fh: int) -> Any:  # noqa: ARG002
        """What `ls` shows, with what is being written."""
        opened = self._files.get(fh)
        folder = opened if isinstance(opened, str) else ""
        found = dict.fromkeys(self._layers.names(folder))
        for handle in self._files.all_written():
            above, _, name = handle.name.rpartition("/")
            if name and above == folder and not handle.failure:
                found[name] = None
        return [".", "..", *found]

    def releasedir(self, path: str | None, fh: int) -> int:  # noqa: ARG002
        """It is closed."""
        self._files.drop(fh)
        return 0

    def readlink(self, path: str) -> str:
        """Where a link leads."""
        found = self._layers.find(inner(path))
        if isinstance(found, Kept):
            return found.target
        assert self._layers.storage is not None
        return os.readlink(self._layers.storage.place(inner(path)))

    def statfs(self, path: str) -> dict[str, int]:  # noqa: ARG002
        """What `df` shows: how much may still be taken."""
        free = self._free_bytes() // 4096
        used = sum(handle.data.size_bytes for handle in self._files.all_written()) // 4096
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": 4096,
            "f_blocks": free + used,
            "f_bfree": free,
            "f_bavail": free,
            "f_namemax": 255,
        }

    # --- opening

    def open(self, path: str, flags: int) -> int:
        """Open for reading, or to write it anew, or what is there changed: a copy of that, until it is closed."""
        name = inner(path)
        if not flags & _WRITES:
            for written in self._files.writers(name):
                if written.authors.are_done:
                    self._committing.commit(written)
            return self._files.keep(self._opened(name))
        if self._layers.kind_of(name) == "folder":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        written = self._begin(name, self._mode_of(name))
        if not flags & os.O_TRUNC:
            reading = self._opened(name)
            try:
                size_bytes = os.fstat(reading.descriptor).st_size
                written.begin_with(reading.descriptor, size_bytes)
            finally:
                reading.close()
        return self._files.keep(written)

    def create(self, path: str, mode: int, fi: Any = None) -> int:  # noqa: ARG002
        """Begin a file. What its name stands for stays until it is closed."""
        return self._files.keep(self._begin(inner(path), stat.S_IMODE(mode)))

    def _begin(self, name: str, mode: int) -> WrittenFile:
        return WrittenFile(name, mode, self._callers.process_of(self.calling_thread()), self._make)

    def _opened(self, name: str) -> Reading:
        found = self._layers.find(name)
        if isinstance(found, Kept):
            if found.data is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return Reading(found.data.descriptor, found)
        assert self._layers.storage is not None
        return Reading(os.open(self._layers.storage.place(name), os.O_RDONLY | os.O_CLOEXEC), None)

    def _mode_of(self, name: str) -> int:
        try:
            found = self._layers.find(name)
        except FileNotFoundError:
            return 0o644
        return found.mode if isinstance(found, Kept) else stat.S_IMODE(found.st_mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Announce that reading is possible; `DirectFuse` calls `read_to`."""
        raise NotImplementedError

    def read_to(self, address: int, size: int, offset: int, fh: int) -> int:
        """Copy bytes to an address; less only at the end of the file."""
        handle = self._files.get(fh)
        if isinstance(handle, Reading):
            return read_into(handle.descriptor, address, size, offset)
        if isinstance(handle, WrittenFile):
            return read_into(handle.data.descriptor, address, size, offset)
        raise OSError(errno.EBADF, "not open for reading")

    # --- writing

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Announce that writing is possible; `DirectFuse` calls `write_from`."""
        raise NotImplementedError

    def write_from(self, data: memoryview, offset: int, fh: int) -> int:
        """Take bytes."""
        written = self._files.written(fh)
        thread = self.calling_thread()
        with written.lock:
            if thread not in written.processes:
                written.processes[thread] = self._callers.process_of(thread)
            written.authors.wrote(written.processes[thread])
        return written.write(data, offset)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        """Cut a file: one that is being written, or one that is there, which is another one from then on."""
        handle = self._files.get(fh)
        if isinstance(handle, WrittenFile):
            handle.truncate(length)
            return 0
        if path is None:
            raise OSError(errno.EBADF, "not open for writing")
        name = inner(path)
        reading, written = self._opened(name), self._begin(name, self._mode_of(name))
        try:
            written.begin_with(reading.descriptor, min(length, os.fstat(reading.descriptor).st_size))
        finally:
            reading.close()
        written.truncate(length)
        self._layers.commit(name, written.data, written.mode)
        return 0

    def flush(self, path: str, fh: int) -> int:  # noqa: ARG002
        """A descriptor was closed, by a process that lives or by one that ends."""
        written = self._files.get(fh)
        if not isinstance(written, WrittenFile):
            return 0
        caller = self._callers.caller(self.calling_thread())
        has_another = self._has_another(written, caller)
        with written.lock:
            end = written.end if caller.ending in ("exited", "unknown") else "unknown"
            verdict = written.authors.closed(caller, has_another=has_another, has_bytes=written.has_bytes, end=end)
        if verdict == "give up":
            self._committing.give_up(written)
            if caller.ending == "alive":  # it wrote, and another author was killed
                raise closed_wrong(written.authors.fate)
        elif verdict == "refuse":
            raise closed_wrong(f"{caller.words}: it is not known whether it was all")
        elif verdict == "commit" and (written.failure is not None or written.data.size_bytes):
            self._committing.commit(written)  # empty: shells close a copy before anything is written
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        """Make it visible, unless its format shows that more has to come. It is in memory: nothing is durable."""
        written = self._files.get(fh)
        if isinstance(written, WrittenFile) and (written.failure is not None or written.end != "cut off"):
            self._committing.commit(written)
        return 0

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        """The last descriptor is closed."""
        handle = self._files.get(fh)
        try:
            if isinstance(handle, WrittenFile) and handle.failure is None and not handle.is_committed and handle.name:
                self._committing.last_closed(handle)
        finally:
            self._files.drop(fh)
            if isinstance(handle, Reading):
                handle.close()
        return 0

    def _has_another(self, written: WrittenFile, caller: Caller) -> bool:
        """Whether who closes a descriptor has a copy of it. One of another opening of the same name looks alike."""
        if caller.ending != "alive" or caller.process is None or not written.name:
            return False
        openings = [
            each for each in self._files.all_written() if each.name == written.name and each.authors.has(caller.process)
        ]
        return openings == [written] and self._callers.has_another(caller.process, f"/{written.name}")

    def calling_thread(self) -> int:
        """Return the thread that the kernel says is calling; 0 if it cannot be named here."""
        return int(mfusepy.fuse_get_context()[2])
