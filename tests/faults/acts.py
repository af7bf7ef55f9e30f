"""What goes wrong, and where in a step: acts take the rank's own time, tamperings change what it says to its peers.

An act is a function of the plan. None waits for a peer. Hangs as they are found in the field are in `real_hangs.py`, what only
makes a rank slow in `slowness.py`, habits of healthy programs (checkpoints, evaluation, collections of garbage) in `habits.py`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import real_hangs
from plan import FOR_EVER_S, Plan, note_fired
from slowness import slow_compute, slow_constant, slow_duty, slow_jitter, slow_shared_cpu

# --- stuck ----------------------------------------------------------------------------------------------------------


def sleep(_: Plan) -> None:
    """Do nothing."""
    time.sleep(FOR_EVER_S)


def busy(_: Plan) -> None:
    """Burn one core in one function."""
    while True:
        pass


def gil(_: Plan) -> None:
    """Wait in C with the interpreter's lock held: no other Python thread runs. Not with sleep(), which any signal ends."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def fifo(plan: Plan) -> None:
    """Read a file that gives nothing, as a dead network file system does."""
    path = os.path.join(plan.notes, f"fifo-{os.getpid()}")
    os.mkfifo(path)
    with open(path, encoding="utf-8") as file:
        file.read()


def own_lock(_: Plan) -> None:
    """Take a lock twice."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def others_lock(_: Plan) -> None:
    """Wait for a lock that another thread keeps."""
    lock, taken = threading.Lock(), threading.Event()

    def keep() -> None:
        with lock:
            taken.set()
            time.sleep(FOR_EVER_S)

    threading.Thread(target=keep, daemon=True, name="keeper").start()
    taken.wait()
    with lock:
        pass


def silent_socket(_: Plan) -> None:
    """Wait for the answer of a server that never gives one."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.sendall(b"GET /next-batch\r\n")
    client.recv(1)


def empty_queue(_: Plan) -> None:
    """Wait for an item that no thread makes."""
    queue.Queue[int]().get()


def generator(_: Plan) -> None:
    """Look for a sample that does not exist, in a generator without end."""

    def candidates() -> object:
        number = 0
        while True:
            number = (number * 31 + 7) % 1_000_003
            yield number

    for number in candidates():  # type: ignore[attr-defined]
        if number < 0:
            return


def subprocess_stuck(_: Plan) -> None:
    """Wait for a command that does not end."""
    subprocess.run(["sleep", str(int(FOR_EVER_S))], check=False)


def fork_child(_: Plan) -> None:
    """Be stuck while a forked child goes on: it looks alive every 50 ms."""
    if os.fork() == 0:
        while True:
            time.sleep(0.05)
    time.sleep(FOR_EVER_S)


def _feed(items: multiprocessing.Queue[int]) -> None:
    while True:
        items.put(1)
        time.sleep(0.01)


def loader_killed(_: Plan) -> None:
    """Wait for batches of a loader process that was killed (the kernel's out-of-memory killer does this)."""
    context = multiprocessing.get_context("fork")
    items: multiprocessing.Queue[int] = context.Queue(2)
    feeder = context.Process(target=_feed, args=(items,), daemon=True)
    feeder.start()
    items.get()
    os.kill(feeder.pid or 0, signal.SIGKILL)
    while True:
        items.get()


class _StuckData:
    """A data set whose third sample cannot be read."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index >= 2:
            time.sleep(FOR_EVER_S)
        return index


def getitem_stuck(_: Plan) -> None:
    """Wait for a DataLoader whose worker is stuck in __getitem__."""
    from torch.utils.data import DataLoader

    for _batch in DataLoader(_StuckData(), num_workers=1):
        pass


# --- stopped, dead ---------------------------------------------------------------------------------------------------


def stop(_: Plan) -> None:
    """Stand still, as under a debugger or a frozen container."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_soon(_: Plan) -> None:
    """Stand still a moment later, when the main thread waits for its peers."""
    threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGSTOP)).start()


def exit_early(_: Plan) -> None:
    """Leave as if all were done."""
    sys.exit(0)


def kill(_: Plan) -> None:
    """Die as of the out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(_: Plan) -> None:
    """Have a bug."""
    raise ValueError("label 50257 is out of range for 50257 classes")


def abort(_: Plan) -> None:
    """Abort in C, as a failed assertion in a library does."""
    os.abort()


def segfault(_: Plan) -> None:
    """Read where nothing is, as a broken extension does."""
    ctypes.string_at(0)


ACTS: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "sleep": ("start", sleep),
    "busy": ("start", busy),
    "gil": ("start", gil),
    "fifo": ("data", fifo),
    "own_lock": ("start", own_lock),
    "stop": ("start", stop),
    "stop_inside": ("late", stop_soon),
    "exit_early": ("start", exit_early),
    "kill": ("start", kill),
    "exception": ("start", raise_error),
    "abort": ("start", abort),
    "sleep_after_issue": ("issued", sleep),
    "sleep_before_dp": ("before_dp", sleep),
    "slow_constant": ("compute", slow_constant),
    "slow_jitter": ("compute", slow_jitter),
    "slow_duty": ("compute", slow_duty),
    "slow_shared_cpu": ("compute", slow_shared_cpu),
    "slow_node": ("compute", slow_constant),
    "loader_killed": ("data", loader_killed),
    "two_stuck": ("start", sleep),
    "hang_in_init": ("groups", sleep),
    "hang_at_end": ("end", sleep),
    # Held out: never looked at while rules and thresholds were chosen.
    "optimizer_sleep": ("optimizer", sleep),
    "others_lock": ("start", others_lock),
    "silent_socket": ("data", silent_socket),
    "empty_queue": ("data", empty_queue),
    "generator": ("data", generator),
    "subprocess_stuck": ("start", subprocess_stuck),
    "fork_child": ("start", fork_child),
    "getitem_stuck": ("data", getitem_stuck),
    "late_to_init": ("init", sleep),
    "segfault": ("start", segfault),
    "slow_compute": ("compute", slow_compute),
    **real_hangs.ACTS,
}
"""By name: the point in the program where it happens, and what happens."""

LASTING = frozenset({"slow_constant", "slow_jitter", "slow_duty", "slow_shared_cpu", "slow_node", "slow_compute"})
"""They go on in every step; all others strike once."""

TAMPERINGS = frozenset(
    "size dtype op_type broadcast_type wrong_root skipped extra order no_send extra_recv wrong_peer"
    " skip_layer swallowed no_sync extra_barrier recv_any other_tag".split()
)
"""They change a call: see `talk.py`."""


class Saboteur:
    """Strikes on the right rank, at the right step and point, and notes it before it does."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank, self.step = plan, rank, -1
        self._mine = rank in plan.ranks
        self._struck = False
        self._point, self._act = ACTS.get(plan.fault, ("", sleep))
        random.seed(plan.seed * 1000 + rank)

    def at(self, point: str) -> None:
        """The rank is at this point of the program."""
        if point != self._point or not self._mine:
            return
        due = self.step >= self.plan.step if self.plan.fault in LASTING else self.step == self.plan.step
        if due or point in ("init", "groups", "end"):
            note_fired(self.plan, self.rank)
            self._act(self.plan)

    def tampers(self, *names: str) -> str:
        """Return the name of the tampering if it is one of these and is due, else an empty text."""
        due = self._mine and self.step == self.plan.step and not self._struck
        if due and self.plan.fault in names:
            self._struck = True
            note_fired(self.plan, self.rank)
            return self.plan.fault
        return ""

    def others_are_late(self) -> None:
        """Let the peers of a rank that is to be stopped inside a call come to it later than that rank."""
        if self.plan.fault == "stop_inside" and self.step == self.plan.step and not self._mine:
            time.sleep(0.6)
