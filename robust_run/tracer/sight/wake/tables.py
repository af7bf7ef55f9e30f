"""Reads single files of /proc that tell who waits for whom: owners of locks, holders of pipes, threads, the machine.

What cannot be read, or is not understood, is empty.
"""

from __future__ import annotations

import os

from robust_run.tracer.sight.wake import descriptors
from robust_run.tracer.wake.syscalls import ELF_MACHINES
from robust_run.tracer.wake.types import Access


def access_to(pid: int, target: str, root: str) -> Access:
    """Return how a process holds a pipe, by all of its descriptors; "" if it does not."""
    found = set()
    try:
        with os.scandir(f"{root}/{pid}/fd") as entries:
            for entry in entries:
                if os.readlink(entry.path) == target:
                    found |= set(descriptors.access_of(descriptors.info(pid, int(entry.name), root)))
    except OSError:
        pass  # gone meanwhile, or not ours to read
    return descriptors.wanted_access("r" in found, "w" in found)


def lock_owner(table: str, pid: int) -> int | None:
    """Return who owns the file lock that a process waits for, from the text of /proc/locks; None if it waits for none.

    A lock has a line with its owner; those that wait for it follow, with the same number and an arrow.
    """
    owner: int | None = None
    for line in table.splitlines():
        words = line.split()
        if len(words) < 7:
            continue
        is_waiter = words[1] == "->"
        at = 5 if is_waiter else 4
        if not words[at].lstrip("-").isdigit():
            continue
        if not is_waiter:
            owner = int(words[at])
        elif int(words[at]) == pid:
            return owner
    return None


def machine_of(pid: int, root: str = "/proc") -> str:
    """Return whose system calls a process makes, from its program's header; "" if that is another's, of 32 bits, or unknown."""
    try:
        with open(f"{root}/{pid}/exe", "rb", buffering=0) as file:
            head = file.read(20) or b""
    except OSError:
        return ""
    if len(head) < 20 or head[:6] != b"\x7fELF\x02\x01":
        return ""
    return ELF_MACHINES.get(int.from_bytes(head[18:20], "little"), "")


def call_in(text: str) -> tuple[int | None, tuple[int, ...]]:
    """Return the number and the arguments in the text of `syscall`: `230 0x0 0x0 ...`, `running`, `-1 0x...`."""
    words = text.split()
    if len(words) < 7:
        return None, ()
    try:
        number, arguments = int(words[0]), tuple(int(word, 16) for word in words[1:7])
    except ValueError:
        return None, ()
    return (number, arguments) if number >= 0 else (None, ())


def stack_in(text: str) -> int:
    """Return where the stack of a thread ends that is in a system call, from the text of `syscall`; 0 if that is not told."""
    words = text.split()
    try:
        return int(words[7], 16) if len(words) == 9 and int(words[0]) >= 0 else 0
    except ValueError:
        return 0


def signals_in(text: str) -> int | None:
    """Return a set of signals as /proc writes it, in hexadecimal; None if there is none."""
    try:
        return int(text, 16)
    except ValueError:
        return None


def threads_of(pid: int, root: str) -> list[int]:
    """Return the threads of a process, the main thread first."""
    try:
        found = sorted(int(name) for name in os.listdir(f"{root}/{pid}/task") if name.isdigit())
    except OSError:
        return []
    return sorted(found, key=lambda tid: tid != pid)


def clocks_of(pid: int | None, root: str) -> str:
    """Return the time namespace of a process, of our own for None; "" if it is not ours to know."""
    try:
        return os.readlink(f"{root}/{pid}/ns/time" if pid is not None else "/proc/self/ns/time")
    except OSError:
        return ""


def field(path: str, name: str) -> str:
    """Return a field of a file of lines `name: value`."""
    for line in text(path).splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def text(path: str, most: int = 16 * 1024) -> str:
    """Return the beginning of a small file."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(most) or b"").decode("utf-8", errors="replace")
    except OSError:
        return ""
