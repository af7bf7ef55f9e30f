"""Which process calls the mount, and whether it lives: what tells a file that was closed from one whose writer was killed.

A process that ends closes its descriptors like one that calls `close`: the kernel sends the same FLUSH. But it sends it from
within the task that ends, and waits for the answer, so `/proc` still shows that task. What it shows (tried on Linux 6.18, and so
in the kernel's sources since 3.5):

* FLUSH names the thread that let go of the descriptors last, any of the process's; RELEASE names none.
* A task that ends has no memory any more (`exit_mm` comes before `exit_files`): no `Vm...` lines in `status`. Anybody may read
  that.
* Its `stat` shows, as the last field, why it ends: a signal's number, or 256 times the exit code. All threads of a process show
  the same. The flag that a signal ended it (PF_SIGNALED) does not tell: threads that another one's `exit` ended have it, too.
  Only its own user and root are shown the field, others read 0: they may not read `cwd` either, which tells them apart.
* `execve` closes descriptors, too. Then the new memory has no executable page yet. `stat` must not be read at that moment:
  newer kernels keep its reader waiting until the execve is over, which waits for our answer. `status` waits for nothing, so it
  comes first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from robust_run.ckpt_io.mount.mounts import KIND
from robust_run.mounts.table import mounts

Ending = Literal["alive", "exited", "failed", "killed", "replaced", "unknown"]
"""alive: it called `close` itself. exited: with exit code 0, and left closing to the kernel. failed: with another exit code.
killed: by a signal. replaced: by execve. unknown: it cannot be seen."""

_KERNEL_THREAD = 0x00200000
#: Fields of `stat` behind the name of the program, which may hold anything.
_FLAGS, _EXIT_CODE = 6, 49


@dataclass(frozen=True)
class Caller:
    """Who called, and what is known of that process at this moment."""

    process: int | None
    """None: it cannot be seen. All such callers are one to us."""
    ending: Ending
    words: str
    """For people: what became of it."""


class Callers:
    """Looks at processes."""

    def __init__(self, proc: str = "/proc") -> None:
        """`proc`: where the processes of this PID namespace are shown."""
        self._proc = proc
        try:
            shows_ours = os.readlink(os.path.join(proc, "self")) == str(os.getpid())
        except OSError:
            shows_ours = False
        self._is_usable = shows_ours  # else its numbers are those of other processes

    def process_of(self, thread: int) -> int | None:
        """Return the process of a thread; None if it cannot be seen."""
        status = self._status(thread)
        return _number(status, "Tgid") if status else None

    def caller(self, thread: int) -> Caller:
        """Return what is known of the caller. Called while it waits for our answer, so that it cannot be another one by now."""
        status = self._status(thread)
        process = _number(status, "Tgid") if status else None
        if status is None or process is None:
            return Caller(None, "unknown", "a process that cannot be seen from here (of another PID namespace?)")
        if "VmSize" in status:
            if _number(status, "VmExe") == _number(status, "VmLib") == 0:
                return Caller(process, "replaced", f"process {process} executed another program")
            return Caller(process, "alive", f"process {process} closed it")
        return self._ended(thread, process)

    def has_another(self, process: int, path: str) -> bool:
        """Whether a process that lives has one more descriptor that writes to a file; False where that cannot be seen.

        `path` is the file's, from the mount's top on: where that process sees the mount is not known.
        """
        folder = os.path.join(self._proc, str(process))
        with suppress(OSError):
            for number in os.listdir(os.path.join(folder, "fd")):
                with suppress(OSError, ValueError, KeyError):
                    if os.readlink(os.path.join(folder, "fd", number)).endswith(path):
                        about = _fields(os.path.join(folder, "fdinfo", number))
                        is_writing = int(about["flags"], 8) & (os.O_WRONLY | os.O_RDWR)
                        if is_writing and self._may_be_of_ours(about["mnt_id"]):
                            return True
        return False

    def _may_be_of_ours(self, mount_id: str) -> bool:
        """Whether a mount is one of checkpoints, or one that is not seen from here."""
        seen = mounts(os.path.join(self._proc, "thread-self", "mountinfo"))
        found = next((mount for mount in seen if mount.number == mount_id), None)
        return found is None or found.kind == KIND

    def _status(self, thread: int) -> Mapping[str, str] | None:
        if not self._is_usable or thread <= 0:
            return None
        try:
            return _fields(os.path.join(self._proc, str(thread), "status"))
        except OSError:
            return None

    def _ended(self, thread: int, process: int) -> Caller:
        folder = os.path.join(self._proc, str(thread))
        try:
            with open(os.path.join(folder, "stat"), encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            flags, code = int(fields[_FLAGS]), int(fields[_EXIT_CODE])
        except (OSError, ValueError, IndexError):
            return Caller(None, "unknown", f"process {process}, of which it cannot be seen how it ended")
        if flags & _KERNEL_THREAD:
            return Caller(None, "unknown", "the kernel, for a process that cannot be seen from here (over NFS?)")
        if not code and not _may_look(folder):
            return Caller(
                None, "unknown", f"process {process} of another user, of which it cannot be seen how it ended"
            )
        return ended(process, code)


def ended(process: int, code: int) -> Caller:
    """Return what an exit code, as the kernel keeps it, says. Pure."""
    if number := code & 0x7F:
        with suppress(ValueError):
            return Caller(process, "killed", f"process {process} was killed by {signal.Signals(number).name}")
        return Caller(process, "killed", f"process {process} was killed by signal {number}")
    if code >> 8:
        return Caller(process, "failed", f"process {process} ended with exit code {code >> 8} and did not close it")
    return Caller(process, "exited", f"process {process} ended with exit code 0")


def _may_look(folder: str) -> bool:
    try:
        os.readlink(os.path.join(folder, "cwd"))
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _fields(path: str) -> Mapping[str, str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, colon, value in (line.partition(":") for line in file) if colon}


def _number(fields: Mapping[str, str], name: str) -> int | None:
    try:
        return int(fields[name].split()[0])
    except (KeyError, ValueError, IndexError):
        return None
