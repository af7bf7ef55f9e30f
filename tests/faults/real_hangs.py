"""Hangs as they are found in the field: threads and processes of a rank that wait for what will never come.

The list (R1 to R12 of the matrix) was written down before anything that proves a hang, so that proofs are not made to fit it.
Two of these acts are circles of owners, which nothing can break: to prove them is right. All others might end for all that can be
seen from outside, and are only said.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable

from plan import FOR_EVER_S, Plan

FORK = multiprocessing.get_context("fork")


# --- locks


def lock_circle(_: Plan) -> None:
    """Hold one lock and wait for that of a thread which waits for ours."""
    ours, theirs, taken = threading.RLock(), threading.RLock(), threading.Event()

    def other() -> None:
        with theirs:
            taken.set()
            with ours:
                pass

    with ours:
        threading.Thread(target=other, daemon=True, name="other").start()
        taken.wait()
        with theirs:
            pass


def mutex_circle(_: Plan) -> None:
    """The same with mutexes of C, where the interpreter's lock is given away meanwhile."""
    library = ctypes.CDLL(None)
    ours, theirs = (ctypes.c_uint64 * 16)(), (ctypes.c_uint64 * 16)()  # zeros: PTHREAD_MUTEX_INITIALIZER
    taken = threading.Event()

    def other() -> None:
        library.pthread_mutex_lock(ctypes.byref(theirs))
        taken.set()
        library.pthread_mutex_lock(ctypes.byref(ours))

    library.pthread_mutex_lock(ctypes.byref(ours))
    threading.Thread(target=other, daemon=True, name="other").start()
    taken.wait()
    library.pthread_mutex_lock(ctypes.byref(theirs))


def timed_circle(_: Plan) -> None:
    """A circle in which both ask again and again: each wakes every second, and might do something else then."""
    ours, theirs, taken = threading.RLock(), threading.RLock(), threading.Event()

    def other() -> None:
        with theirs:
            taken.set()
            while not ours.acquire(timeout=1.0):
                pass

    with ours:
        threading.Thread(target=other, daemon=True, name="other").start()
        taken.wait()
        while not theirs.acquire(timeout=1.0):
            pass


def owner_ended(_: Plan) -> None:
    """Wait for a lock whose owner has ended without giving it back."""
    lock = threading.RLock()
    owner = threading.Thread(target=lock.acquire, name="owner")
    owner.start()
    owner.join()
    with lock:
        pass


def never_notified(_: Plan) -> None:
    """Wait for a condition of which nobody will say that it holds."""
    changed = threading.Condition()
    with changed:
        changed.wait()


# --- processes


def unfilled_queue(_: Plan) -> None:
    """Wait for an item of a process that sleeps."""
    items = FORK.SimpleQueue()
    FORK.Process(target=time.sleep, args=(FOR_EVER_S,), daemon=True).start()
    items.get()


class _Data:
    """A data set that is read without end."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return index


def loader_stopped(_: Plan) -> None:
    """Wait for batches of a DataLoader whose worker stands still."""
    from torch.utils.data import DataLoader

    batches = iter(DataLoader(_Data(), num_workers=1))
    next(batches)
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGSTOP)
    for _batch in batches:
        pass


def flock_of_stopped(plan: Plan) -> None:
    """Wait for a file's lock that a stopped child holds."""
    path = os.path.join(plan.notes, f"lock-{os.getpid()}")
    taken, says = os.pipe()
    if os.fork() == 0:
        with open(path, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(says, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(FOR_EVER_S)
    os.read(taken, 1)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def silent_server(_: Plan) -> None:
    """Ask a server that accepts and never answers, without a limit."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        kept = []
        while True:
            kept.append(server.accept())

    FORK.Process(target=serve, daemon=True).start()
    address = f"http://127.0.0.1:{server.getsockname()[1]}/next"
    server.close()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as answer:
        answer.read()


# --- the end


def raised_but_kept(_: Plan) -> None:
    """Have a bug, while a thread that is no daemon keeps the process."""
    threading.Thread(target=time.sleep, args=(FOR_EVER_S,), name="keeper").start()
    raise ValueError("label 50257 is out of range for 50257 classes")


ACTS: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "lock_circle": ("start", lock_circle),
    "mutex_circle": ("start", mutex_circle),
    "owner_ended": ("start", owner_ended),
    "never_notified": ("start", never_notified),
    "unfilled_queue": ("data", unfilled_queue),
    "loader_stopped": ("data", loader_stopped),
    "flock_of_stopped": ("start", flock_of_stopped),
    "silent_server": ("data", silent_server),
    "raised_but_kept": ("start", raised_but_kept),
    "timed_circle": ("start", timed_circle),
}
"""By name, as `acts.ACTS`. The calls to peers among the real hangs are tamperings: `recv_any`, `other_tag`."""
