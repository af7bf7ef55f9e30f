"""Words of the wake chain: what the kernel said of processes that wait, and what follows from it. No behaviour.

A reading is plain data with all that the judgement needs, so that each judgement can be made again from an incident's file.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Access = Literal["", "r", "w", "rw"]


class ThreadReading(msgspec.Struct, frozen=True, kw_only=True):
    """One thread at one moment."""

    tid: int
    name: str = ""
    """As the kernel knows it."""
    state: str
    """As in /proc: R S D T t Z."""
    call: int | None = None
    """Number of the system call that it is in; None: in none, or it cannot be read."""
    arguments: tuple[int, ...] = ()
    stack: int = 0
    """Where its stack ended when it made the call; 0: not known."""
    pointed: tuple[tuple[int, bytes], ...] = ()
    """What arguments point to, by their position: times, descriptors to wait for, a path."""
    waits_in: str = ""
    """The kernel's function that it sleeps in."""
    run_ns: int = 0
    """Time that it ran so far."""
    delay_ns: int = 0
    """Time that it was runnable so far and had no CPU."""
    switches: int = 0
    """How often it gave up its CPU or lost it so far."""


class DescriptorReading(msgspec.Struct, frozen=True, kw_only=True):
    """A descriptor that a thread waits for."""

    fd: int
    target: str
    """What it is a link to: `pipe:[1234]`, `socket:[1234]`, `/data/x.bin`, `anon_inode:[eventpoll]`."""
    kind: Literal["file", "folder", "fifo", "terminal", "device", "pipe", "socket", "other"]
    access: Access = ""
    watched: tuple[tuple[int, Access], ...] = ()
    """Of an epoll descriptor: descriptors and what is waited for on them."""
    process: int = 0
    """Of a pidfd: the process that it stands for."""
    file_system: str = ""
    """Type of the file system that a file lies in: `ext4`, `nfs4`, `fuse.sshfs`."""


class HeldLockReading(msgspec.Struct, frozen=True, kw_only=True):
    """A lock of Python that a thread waits for and that names its owner: a `threading.RLock`."""

    waiter: int
    """The thread that waits."""
    word: int
    """Address of the futex that it waits at."""
    owner: int
    """The thread that holds it; no other can release it."""


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment."""

    pid: int
    parent: int
    start_ticks: int
    command: str
    """What it runs, short."""
    machine: str = ""
    """Whose numbers system calls have: `x86_64`, `aarch64`; "": another's, or not known."""
    same_clocks: bool = True
    """It is in our time namespace: what it sleeps until can be compared with our clocks."""
    tracer: int = 0
    """The debugger, if it has one."""
    threads: tuple[ThreadReading, ...] = ()
    """The main thread first; empty where they cannot be read."""
    hidden_threads: int = 0
    """Threads that were not looked at, because there are too many."""
    descriptors: tuple[DescriptorReading, ...] = ()
    """Those that its threads wait for."""
    children: tuple[int, ...] = ()
    held_locks: tuple[HeldLockReading, ...] = ()
    """Locks that its threads wait for, where memory tells the owner."""
    caught_signals: int | None = None
    """Signals that it handles, a bit each, the lowest for signal 1; None: not known."""
    frozen_by: str = ""
    """The file of the cgroup that keeps it frozen; "" if none does."""


class HolderReading(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds an end of a pipe or FIFO."""

    target: str
    pid: int
    command: str
    access: Access


class SocketReading(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that a thread waits for."""

    inode: int
    kind: Literal["tcp", "other"]
    here: str = ""
    there: str = ""
    """`10.0.0.3:443`; "" while it only listens."""
    is_listening: bool = False
    received_bytes: int | None = None
    """By this connection so far; None: the kernel does not say."""
    quiet_s: float | None = None
    """For how long nothing has come."""


class LockReading(msgspec.Struct, frozen=True, kw_only=True):
    """A file lock that a process waits for."""

    waiter: int
    owner: int
    """-1: the kernel names none (locks of open file descriptions, of other hosts)."""
    command: str = ""
    """What the owner runs."""


class WakeReading(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read of one rank, within a few milliseconds."""

    at_s: float
    """Monotonic clock of the node."""
    unix_s: float
    """The same moment, in seconds since the epoch."""
    pid: int
    """The rank's process."""
    processes: tuple[ProcessReading, ...] = ()
    holders: tuple[HolderReading, ...] = ()
    sockets: tuple[SocketReading, ...] = ()
    locks: tuple[LockReading, ...] = ()
    unread: tuple[str, ...] = ()
    """What could not be read, in words: nothing is concluded from what is not there."""


WakerKind = Literal["itself", "thread", "process", "service", "storage", "person", "nothing", "unknown"]
"""itself: a timer. service: the other end of a socket that is no process of this host's reading. nothing: it waits for nothing,
it runs. unknown: the kernel does not say."""


class Waker(msgspec.Struct, frozen=True, kw_only=True):
    """Who could wake a thread."""

    kind: WakerKind
    pid: int = 0
    """Of a process."""
    thread: int = 0
    """Of a thread that is known to be the one; 0: not known."""
    words: str = ""
    """Who it is, for people: `its child 4711 (curl)`, `10.0.0.3:443, no byte for 12 s`."""


class ThreadWait(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread waits for."""

    doing: str
    """A clause without the thread: `sleeps for 12.3 s more`, `waits for its child 4711 (curl)`."""
    call: str = ""
    """Name of the system call; "": none, or not known."""
    wakers: tuple[Waker, ...]
    """Anyone of them may wake it."""
    until_s: float | None = None
    """When it wakes by itself at the latest (monotonic clock of the node); None: it does not, or that is not known."""
    is_exact: bool = False
    """`until_s` is when, not at the latest: nothing else wakes it but a signal."""


class WakeLink(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the chain: a process, and what its telling thread waits for."""

    pid: int
    command: str
    wait: ThreadWait


class WakeChain(msgspec.Struct, frozen=True, kw_only=True):
    """From the rank to what it waits for in the end."""

    links: tuple[WakeLink, ...]
    """The rank first; each waits for the next."""
    sentence: str
    """A clause without the rank: `waits for its child 4711 (curl), which waits for 10.0.0.3:443, no byte for 12 s`."""
    ends: tuple[str, ...] = ()
    """Who might wake the last link and is no process of the chain: `10.0.0.3:443, no byte for 12 s`."""
    arrows: str
    """The same as a drawing: `pid 4710 train.py ← pid 4711 curl ← 10.0.0.3:443, no byte for 12 s`."""
