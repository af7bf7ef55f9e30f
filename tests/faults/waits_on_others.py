"""Legitimate waits of rank 0 for threads and processes of its own, and for signals."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import multiprocessing
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from waits_ground import until

FORK = multiprocessing.get_context("fork")


# --- threads


def condition(seconds: float) -> None:
    changed = threading.Condition()

    def change() -> None:
        time.sleep(seconds)
        with changed:
            changed.notify_all()

    with changed:
        threading.Thread(target=change, daemon=True).start()
        changed.wait()


def semaphore(seconds: float) -> None:
    free = threading.Semaphore(0)
    threading.Timer(seconds, free.release).start()
    free.acquire()


def thread_barrier(seconds: float) -> None:
    meets = threading.Barrier(2)
    threading.Timer(seconds, meets.wait).start()
    meets.wait()


def held_lock(seconds: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(seconds, lock.release).start()
    with lock:
        pass


def recursive_lock(seconds: float) -> None:
    lock, taken = threading.RLock(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(seconds)

    threading.Thread(target=hold, daemon=True).start()
    taken.wait()
    with lock:
        pass


def joined_queue(seconds: float) -> None:
    tasks: queue.Queue[int] = queue.Queue()
    tasks.put(1)
    threading.Timer(seconds, tasks.task_done).start()
    tasks.join()


def futures_of_many(seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        concurrent.futures.wait([executor.submit(time.sleep, seconds) for _ in range(4)])


def thread_of_asyncio(seconds: float) -> None:
    asyncio.run(asyncio.to_thread(time.sleep, seconds))


def sleep_that_holds_the_interpreter(seconds: float) -> None:
    ctypes.PyDLL(None).sleep(int(seconds))


# --- processes


def told_by_a_process(say: Callable[[], object], seconds: float) -> multiprocessing.process.BaseProcess:
    """Start a process that says something after a time."""

    def work() -> None:
        time.sleep(seconds)
        say()

    process = FORK.Process(target=work)
    process.start()
    return process


def queue_of_a_process(seconds: float) -> None:
    answers = FORK.SimpleQueue()
    process = told_by_a_process(lambda: answers.put(1), seconds)
    answers.get()
    process.join()


def event_of_a_process(seconds: float) -> None:
    happened = FORK.Event()
    process = told_by_a_process(happened.set, seconds)
    happened.wait()
    process.join()


def lock_of_a_process(seconds: float) -> None:
    lock, taken = FORK.Lock(), FORK.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(seconds)

    process = FORK.Process(target=hold)
    process.start()
    taken.wait()
    with lock:
        pass
    process.join()


def barrier_of_processes(seconds: float) -> None:
    meets = FORK.Barrier(2)
    process = told_by_a_process(meets.wait, seconds)
    meets.wait()
    process.join()


def manager(seconds: float) -> None:
    with FORK.Manager() as shared:
        values = shared.Queue()
        process = told_by_a_process(lambda: values.put(1), seconds)
        values.get()
        process.join()


def process_executor(seconds: float) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK) as executor:
        executor.submit(time.sleep, seconds).result()


def forked(seconds: float) -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    os.waitpid(pid, 0)


def looks_for_a_child(seconds: float) -> None:
    process = subprocess.Popen(["sleep", str(seconds)])
    while process.poll() is None:
        time.sleep(0.5)


def timeouts_of_communicate(seconds: float) -> None:
    process = subprocess.Popen(["sleep", str(seconds)], stdout=subprocess.PIPE)
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=3.0)
            return


def pidfd(seconds: float) -> None:
    process = subprocess.Popen(["sleep", str(seconds)])
    watched = select.poll()
    watched.register(os.pidfd_open(process.pid), select.POLLIN)
    watched.poll()
    process.wait()


def pipeline(seconds: float) -> None:
    subprocess.run(f"(sleep {seconds}; echo done) | cat | cat > /dev/null", shell=True, check=True)


def output_of_a_command(seconds: float) -> None:
    os.popen(f"sleep {seconds}; echo done").read()


def stopped_child_that_is_let_go_on(seconds: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    threading.Timer(seconds, lambda: os.kill(process.pid, signal.SIGCONT)).start()
    process.wait()


# --- signals


def alarm(seconds: float) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(max(1, int(seconds)))
    signal.pause()


def alarm_that_ends_a_wait(seconds: float) -> None:
    """No other thread sets the event: the signal's handler does."""
    happened = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: happened.set())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    happened.wait()


def awaited_signal(seconds: float) -> None:
    wanted = {signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    signal.sigwait(wanted)


# --- work


def memory_that_is_touched(seconds: float) -> None:
    goes_on = until(seconds)
    while goes_on():
        bytearray(256 << 20)


def compression_in_a_thread(seconds: float) -> None:
    import zlib

    data, goes_on = os.urandom(8 << 20), until(seconds)

    def work() -> None:
        while goes_on():
            zlib.compress(data)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


WAITS = (
    condition, semaphore, thread_barrier, held_lock, recursive_lock, joined_queue, futures_of_many, thread_of_asyncio,
    sleep_that_holds_the_interpreter,
    queue_of_a_process, event_of_a_process, lock_of_a_process, barrier_of_processes, manager, process_executor, forked,
    looks_for_a_child, timeouts_of_communicate, pidfd, pipeline, output_of_a_command, stopped_child_that_is_let_go_on,
    alarm, alarm_that_ends_a_wait, awaited_signal,
    memory_that_is_touched, compression_in_a_thread,
)  # fmt: skip
