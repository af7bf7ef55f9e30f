"""System calls that block: their numbers, and which argument is the descriptor, the path, the time limit.

Numbers are those of Linux's system call tables; architectures other than these two are not known, so nothing is concluded there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

CallKind = Literal["sleep", "futex", "poll", "select", "epoll", "child", "read", "write", "lock", "path", "sync"]
LimitKind = Literal["none", "timespec", "timeval", "milliseconds", "futex", "clock"]


class BlockingCall(NamedTuple):
    """What is known of a system call."""

    name: str
    kind: CallKind
    subject: int = 0
    """Position of what is waited for: descriptor, path, list of descriptors, child."""
    limit: int = -1
    """Position of the time limit; -1: it has none."""
    limit_kind: LimitKind = "none"


_CALLS: tuple[tuple[BlockingCall, int | None, int | None], ...] = (
    (BlockingCall("nanosleep", "sleep", limit=0, limit_kind="timespec"), 35, 101),
    (BlockingCall("clock_nanosleep", "sleep", limit=2, limit_kind="clock"), 230, 115),
    (BlockingCall("futex", "futex", limit=3, limit_kind="futex"), 202, 98),
    (BlockingCall("poll", "poll", limit=2, limit_kind="milliseconds"), 7, None),
    (BlockingCall("ppoll", "poll", limit=2, limit_kind="timespec"), 271, 73),
    (BlockingCall("select", "select", limit=4, limit_kind="timeval"), 23, None),
    (BlockingCall("pselect6", "select", limit=4, limit_kind="timespec"), 270, 72),
    (BlockingCall("epoll_wait", "epoll", limit=3, limit_kind="milliseconds"), 232, None),
    (BlockingCall("epoll_pwait", "epoll", limit=3, limit_kind="milliseconds"), 281, 22),
    (BlockingCall("epoll_pwait2", "epoll", limit=3, limit_kind="timespec"), 441, 441),
    (BlockingCall("wait4", "child"), 61, 260),
    (BlockingCall("waitid", "child", subject=1), 247, 95),
    (BlockingCall("read", "read"), 0, 63),
    (BlockingCall("readv", "read"), 19, 65),
    (BlockingCall("pread64", "read"), 17, 67),
    (BlockingCall("recvfrom", "read"), 45, 207),
    (BlockingCall("recvmsg", "read"), 47, 212),
    (BlockingCall("accept", "read"), 43, 202),
    (BlockingCall("accept4", "read"), 288, 242),
    (BlockingCall("write", "write"), 1, 64),
    (BlockingCall("writev", "write"), 20, 66),
    (BlockingCall("pwrite64", "write"), 18, 68),
    (BlockingCall("sendto", "write"), 44, 206),
    (BlockingCall("sendmsg", "write"), 46, 211),
    (BlockingCall("connect", "write"), 42, 203),
    (BlockingCall("flock", "lock"), 73, 32),
    (BlockingCall("fcntl", "lock"), 72, 25),
    (BlockingCall("open", "path"), 2, None),
    (BlockingCall("openat", "path", subject=1), 257, 56),
    (BlockingCall("stat", "path"), 4, None),
    (BlockingCall("newfstatat", "path", subject=1), 262, 79),
    (BlockingCall("statx", "path", subject=1), 332, 291),
    (BlockingCall("unlink", "path"), 87, None),
    (BlockingCall("unlinkat", "path", subject=1), 263, 35),
    (BlockingCall("fsync", "sync"), 74, 82),
    (BlockingCall("fdatasync", "sync"), 75, 83),
)

#: By machine, then number. Calls that are not listed are not understood: signals, semaphores, io_uring, `restart_syscall`.
BLOCKING: dict[str, dict[int, BlockingCall]] = {
    "x86_64": {number: call for call, number, _ in _CALLS if number is not None},
    "aarch64": {number: call for call, _, number in _CALLS if number is not None},
}

#: e_machine of ELF files.
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}

#: Operations of futex, without the flags for private memory and for the clock.
FUTEX_WAIT = 0
FUTEX_WAIT_BITSET = 9
#: FUTEX_LOCK_PI and FUTEX_LOCK_PI2.
FUTEX_LOCKS = frozenset({6, 13})
FUTEX_COMMAND = 0x7F
FUTEX_PRIVATE = 0x80
FUTEX_REALTIME = 0x100


def blocking_call(machine: str, number: int | None) -> BlockingCall | None:
    """Return what is known of a system call, None if nothing is."""
    return None if number is None else BLOCKING.get(machine, {}).get(number)
