"""Programs that write a file through a mount and end in the middle of it, each in another way.

    ending_savers.py HOW PATH

Writes `BYTES` of `PATTERN` and ends as `HOW` says; where it does not end by itself, it says "ready" and waits to be killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

BYTES, PATTERN = 3 << 20, b"new!"
DATA = PATTERN * (BYTES // len(PATTERN))


def begin(path: str) -> int:
    """Write, and leave it open; as Python's own `open`, not for programs that are executed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    write(descriptor)
    return descriptor


def write(descriptor: int, data: bytes = DATA) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def wait() -> None:
    """Wait for a signal."""
    print("ready", flush=True)
    signal.pause()


def threads() -> None:
    """Start some that do nothing."""
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def forked(work: Callable[[], object]) -> int:
    """Run it in a child."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child


def until_ended(child: int) -> None:
    """Wait for a child."""
    os.waitpid(child, 0)


def waits(path: str) -> None:
    begin(path)
    wait()


def waits_with_threads(path: str) -> None:
    begin(path)
    threads()
    wait()


def waits_without_its_first_thread(path: str) -> None:
    """The thread that FLUSH comes from is not the one whose number is the process's."""
    begin(path)
    threads()
    print("ready", flush=True)
    ctypes.CDLL(None).syscall(60, 0)  # ends this thread only


def waits_before_the_first_byte(path: str) -> None:
    os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    wait()


def waits_with_a_child_that_goes_on(path: str) -> None:
    """As workers that load data do, which notice a moment later that their parent is gone."""
    begin(path)
    parent = os.getpid()

    def outlive() -> None:
        while os.getppid() == parent:
            time.sleep(0.01)

    forked(outlive)
    wait()


def waits_after_a_copy_was_closed(path: str) -> None:
    os.close(os.dup(begin(path)))
    wait()


def waits_after_a_child_closed_its_copy(path: str) -> None:
    begin(path)
    until_ended(forked(lambda: None))
    subprocess.run(["true"], check=True)
    wait()


def waits_while_a_thread_of_it_writes(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def endlessly() -> None:
        while True:
            write(descriptor)

    threading.Thread(target=endlessly, daemon=True).start()
    wait()


def waits_after_a_sync_and_more(path: str) -> None:
    descriptor = begin(path)
    os.fsync(descriptor)
    write(descriptor)
    wait()


def waits_as_a_child_whose_parent_closed(path: str) -> None:
    """The parent opened it for a child, as `subprocess` does, and has its copy closed before the child is done."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    child = os.fork()
    if child:
        os.close(descriptor)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        until_ended(child)
        os._exit(0)
    write(descriptor)
    wait()


def aborts(path: str) -> None:
    begin(path)
    os.abort()


def ends_with_1(path: str) -> None:
    begin(path)
    os._exit(1)


def ends_with_3_from_a_thread(path: str) -> None:
    begin(path)
    threads()
    threading.Thread(target=os._exit, args=(3,)).start()
    time.sleep(3600)


def executes_another_program(path: str) -> None:
    begin(path)
    os.execv("/bin/true", ["true"])


def executes_while_a_thread_writes(path: str) -> None:
    descriptor = begin(path)
    threading.Thread(target=lambda: [write(descriptor) for _ in range(10_000)], daemon=True).start()
    os.execv("/bin/true", ["true"])


def closes(path: str) -> None:
    os.close(begin(path))


def ends_with_0(path: str) -> None:
    begin(path)
    os._exit(0)


def ends_with_0_and_threads(path: str) -> None:
    begin(path)
    threads()
    os._exit(0)


def ends_with_0_from_a_thread(path: str) -> None:
    begin(path)
    threads()
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(3600)


def is_killed_after_closing(path: str) -> None:
    os.close(begin(path))
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_after_syncing(path: str) -> None:
    os.fsync(begin(path))
    os.kill(os.getpid(), signal.SIGKILL)


def has_a_child_that_is_killed_with_a_copy(path: str) -> None:
    descriptor = begin(path)
    until_ended(forked(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    os.close(descriptor)


def closes_copies_in_the_middle(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for at in range(0, BYTES, BYTES // 4):
        copy = os.dup(descriptor)
        write(copy, DATA[at : at + BYTES // 4])
        os.close(copy)
    os.close(descriptor)


def hands_it_to_another_process(path: str) -> None:
    """The descriptor goes through a socket; who opened it closes it before anything is written."""
    ours, theirs = socket.socketpair()

    def take() -> None:
        _, (descriptor,), _, _ = socket.recv_fds(theirs, 1, 1)
        write(descriptor)

    child = forked(take)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    socket.send_fds(ours, [b"x"], [descriptor])
    os.close(descriptor)
    until_ended(child)


def has_children_that_write(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    half = len(DATA) // 2
    for part in (DATA[:half], DATA[half:]):
        until_ended(forked(lambda part=part: write(descriptor, part)))
    os._exit(0)


def renames_it_while_it_is_open(path: str) -> None:
    descriptor = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    write(descriptor, DATA[: BYTES // 2])
    os.rename(f"{path}.tmp", path)
    write(descriptor, DATA[BYTES // 2 :])
    os.close(descriptor)


def ranks_that_torch_save_one_name(path: str) -> None:
    """Several times, as those do that all save the same state."""
    import torch

    torch.set_num_threads(1)
    state = {"w": torch.arange(2_000_000)}
    ranks = [forked(lambda: [torch.save(state, path) for _ in range(3)]) for _ in range(3)]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))


def waits_after_renaming_it_half_written(path: str) -> None:
    begin(f"{path}.tmp")
    os.rename(f"{path}.tmp", path)
    wait()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
