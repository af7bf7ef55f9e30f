"""Limits, namespaces and control group of a process, as /proc tells them: none of it may change for a job.

The warm process reads this of itself and of whoever asks, and takes what the kernel says, not what the other says.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

LONGEST_VALUE = 80

#: Lines of /proc/PID/status that must be equal, each with the words for them.
_STATUS = {
    "Uid": "user ids",
    "Gid": "group ids",
    "Groups": "groups",
    "CapInh": "capabilities",
    "CapPrm": "capabilities",
    "CapEff": "capabilities",
    "CapBnd": "capabilities",
    "CapAmb": "capabilities",
    "NoNewPrivs": "no_new_privs",
    "Seccomp": "seccomp filters",
    "Seccomp_filters": "seccomp filters",
    "Cpus_allowed": "CPUs",
    "Mems_allowed": "memory nodes",
}


def read(pid: int) -> dict[str, str]:
    """Return what is known of a process, by name. Raises OSError if it is gone or not ours to look at."""
    folder = f"/proc/{pid}"
    found = {"cgroup": _text(f"{folder}/cgroup")}
    for name in sorted(os.listdir(f"{folder}/ns")):
        found[f"{name} namespace"] = os.readlink(f"{folder}/ns/{name}")
    root = os.stat(f"{folder}/root")
    found["root folder"] = f"{root.st_dev}:{root.st_ino}"
    found.update(_limits(_text(f"{folder}/limits")))
    fields = dict(line.split(":\t", 1) for line in _text(f"{folder}/status").splitlines() if ":\t" in line)
    for name, words in _STATUS.items():
        found[f"{words} ({name})"] = fields.get(name, "").strip()
    found["security label"] = _text_or_nothing(f"{folder}/attr/current")
    found["NUMA policy"] = _memory_policy(_text_or_nothing(f"{folder}/numa_maps", 256))
    return found


def _limits(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines()[1:] if line]
    return {f"limit {line[:26].strip()!r}": " ".join(line[26:].split()) for line in lines}


def _memory_policy(maps: str) -> str:
    words = maps.split(" ")
    return words[1] if len(words) > 1 else ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _text_or_nothing(path: str, length_bytes: int = 4096) -> str:
    """Return the beginning of a file that not every kernel has."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, length_bytes).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user id of the process that connected, from the kernel. The pid is 0 if it has none here."""
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user


def why_not(connection: socket.socket) -> str:
    """Return in what the other end of a connection is where we are not, empty if in nothing."""
    try:
        return differs(read(os.getpid()), read(peer(connection)[0]))
    except OSError as error:
        return f"it may not look at this process ({error})"


def differs(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return the first thing in which a warm process and the launcher of a job differ, empty if none. Pure."""
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            return f"its {name} differs: {_short(there.get(name))} there, {_short(here.get(name))} here"
    return ""


def _short(value: str | None) -> str:
    flat = " ".join((value or "none").split())
    return flat if len(flat) <= LONGEST_VALUE else f"{flat[:LONGEST_VALUE]}..."
