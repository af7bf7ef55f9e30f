"""What the kernel tells of a process: state, CPU, I/O, children, and whether a signal would be caught.

All reads go below a folder `root` that looks like /proc. A process that is gone, or not ours to read, gives None or zeros.
"""

from __future__ import annotations

import os
import time

import msgspec

#: Of one rank: processes looked at, and how deep below it.
PROCESSES = 64
DEPTH = 4
#: A file descriptor table larger than this is not searched to its end.
DESCRIPTORS = 4096
TEXT_BYTES = 64 * 1024
#: More than any process has mapped.
MAPS_BYTES = 1 << 26
COMMAND_CHARACTERS = 60
#: Threads of a process that are asked how long they wait for a CPU.
THREADS = 256
#: Of /proc/PID/stat, counted from the state: while a process is stopped, the signal that did it.
EXIT_CODE_FIELD = 49
DIGITS = 20
SIGNALS = 64


class ProcessLook(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    """When it started: a pid with another start is another process."""
    cpu_ticks: int
    """CPU used so far by all its threads, in clock ticks."""
    call_bytes: int
    """Bytes read and written by system calls so far; 0 where that is not ours to read."""
    disk_bytes: int
    """Bytes that disks moved for it so far, also through mapped memory."""

    stopped_by: int = 0
    """The signal that stopped it, while it is stopped; 0: the kernel does not say."""
    turns: str = ""
    """How often its main thread was given a CPU so far; "" where the kernel does not count it."""

    @property
    def is_gone(self) -> bool:
        """Whether only its exit status is left."""
        return self.state in "ZX"


def look(pid: int, root: str = "/proc") -> ProcessLook | None:
    """Return what a process is doing; None if there is none."""
    return _look(pid, f"{root}/{pid}", root)


def look_at_main_thread(pid: int, root: str = "/proc") -> ProcessLook | None:
    """Return what the main thread of a process is doing, without the others; None if it is gone."""
    return _look(pid, f"{root}/{pid}/task/{pid}", root)


def _look(pid: int, folder: str, root: str) -> ProcessLook | None:
    text = small_file(f"{folder}/stat")
    # The name, in brackets, may hold anything.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    try:
        parent, start_ticks = int(fields[1]), int(fields[19])
        cpu_ticks = int(fields[11]) + int(fields[12])
    except ValueError:
        return None
    counted = _fields(small_file(f"{folder}/io"))
    return ProcessLook(
        pid=pid,
        parent=parent,
        state=fields[0][:1],
        start_ticks=start_ticks,
        cpu_ticks=cpu_ticks,
        call_bytes=_number(counted, "rchar") + _number(counted, "wchar"),
        disk_bytes=_number(counted, "read_bytes") + _number(counted, "write_bytes"),
        stopped_by=_stopped_by(pid, fields, root) if fields[0] == "T" else 0,
        turns=(small_file(f"{folder}/schedstat").split() or [""])[-1],
    )


def _stopped_by(pid: int, fields: list[str], root: str) -> int:
    """Return the signal that stopped a process. Older kernels tell it to the parent only, which may be us."""
    told = fields[EXIT_CODE_FIELD] if len(fields) > EXIT_CODE_FIELD else ""
    if _is_number(told) and told != "0":
        return int(told)
    if root != "/proc":
        return 0
    try:
        ended = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return 0
    return ended.si_status if ended is not None and ended.si_code == os.CLD_STOPPED else 0


def delays_s(pid: int, root: str = "/proc") -> dict[int, float]:
    """Return for how long each thread of a process, by id, has been runnable so far without getting a CPU.

    Empty where the kernel does not count it.
    """
    try:
        threads = [int(name) for name in os.listdir(f"{root}/{pid}/task")[:THREADS] if _is_number(name)]
    except OSError:
        return {}
    found = {}
    for thread in threads:
        words = small_file(f"{root}/{pid}/task/{thread}/schedstat").split()
        if len(words) > 1 and _is_number(words[1]):
            found[thread] = int(words[1]) / 1e9
    return found


def tree(pid: int, root: str = "/proc") -> list[int]:
    """Return `pid` and its descendants, parents first, at most `PROCESSES` of them and `DEPTH` levels below it."""
    found = [pid]
    level = [pid]
    for _ in range(DEPTH):
        level = [child for parent in level for child in children(parent, root) if child not in found]
        found += level
        if len(found) >= PROCESSES:
            break
    return found[:PROCESSES]


def children(pid: int, root: str = "/proc") -> list[int]:
    """Return the direct children of a process, of all its threads; those that ended and were not collected too."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"{root}/{pid}/task")
    except OSError:
        return found
    for task in tasks[:DESCRIPTORS]:
        found += [int(word) for word in small_file(f"{root}/{pid}/task/{task}/children").split() if _is_number(word)]
    return found[:PROCESSES]


def command_of(pid: int, root: str = "/proc") -> str:
    """Return what a process runs, short: program and script (`python train.py`), else its name in the kernel."""
    words = [word for word in small_file(f"{root}/{pid}/cmdline").split("\0") if word]
    if not words:
        return small_file(f"{root}/{pid}/comm").strip()[:COMMAND_CHARACTERS]
    program = os.path.basename(words[0])
    script = next((os.path.basename(word) for word in words[1:] if not word.startswith("-")), "")
    if "-c" in words[1:3] or "/" in script:
        script = ""  # program text is not a name
    return _printable(f"{program} {script}".strip())[:COMMAND_CHARACTERS]


def waits_in(pid: int, root: str = "/proc") -> str:
    """Return the kernel function that a process sleeps in; "" if it runs or the kernel does not say."""
    name = small_file(f"{root}/{pid}/wchan").strip()
    return "" if name == "0" else _printable(name)[:COMMAND_CHARACTERS]


def catches(pid: int, signal_number: int, root: str = "/proc") -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it."""
    return signal_number in caught(pid, root)


def caught(pid: int, root: str = "/proc") -> frozenset[int]:
    """Return the numbers of the signals that a process has handlers for; none if the kernel does not say."""
    text = _fields(small_file(f"{root}/{pid}/status")).get("SigCgt", "0")
    try:
        mask = int(text, 16)
    except ValueError:
        return frozenset()
    return frozenset(number for number in range(1, SIGNALS + 1) if mask >> (number - 1) & 1)


def has_open(pid: int, path: str, root: str = "/proc") -> bool:
    """Whether a process holds a file open: a child that closed all its descriptors would write elsewhere."""
    wanted = os.path.realpath(path)
    try:
        numbers = os.listdir(f"{root}/{pid}/fd")
    except OSError:
        return False
    for number in numbers[:DESCRIPTORS]:
        try:
            if os.readlink(f"{root}/{pid}/fd/{number}") == wanted:
                return True
        except OSError:
            continue
    return False


def maps(pid: int, path: str, root: str = "/proc") -> bool | None:
    """Whether a process has a file mapped; None if the kernel does not say. A program that was replaced (`exec`) has none of its
    files mapped any more.
    """
    name = os.fsencode(os.path.realpath(path))
    try:
        inode = str(os.stat(path).st_ino).encode()
        with open(f"{root}/{pid}/maps", "rb") as file:
            content = file.read(MAPS_BYTES)
    except OSError:
        return None
    if not content or len(content) == MAPS_BYTES:
        return None
    # An overlay may tell another number than the file has.
    return any(fields[4:5] == [inode] or name in line for line in content.splitlines() if (fields := line.split()))


def is_python(pid: int, root: str = "/proc") -> bool:
    """Whether a process runs a Python interpreter, as far as its program's name tells."""
    try:
        return "python" in os.path.basename(os.readlink(f"{root}/{pid}/exe"))
    except OSError:
        return False


def age_s(seen: ProcessLook) -> float:
    """Return for how long a process has been running. Start ticks count on the clock of the machine's boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - seen.start_ticks / os.sysconf("SC_CLK_TCK")


def small_file(path: str) -> str:
    """Return the beginning of a small file, "" if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(TEXT_BYTES) or b"").decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _fields(text: str) -> dict[str, str]:
    """Return the lines `name: value` of a text."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
