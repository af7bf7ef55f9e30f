"""Waits of real processes, as the kernel tells of them: nothing is stopped, nothing is asked of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from jobs import wait_for

from robust_run.tracer.sight.wake.asking import needs_chain, wake_reading, wake_readings
from robust_run.tracer.sight.wake.reading import read
from robust_run.tracer.sight.wake.sockets import quiet_times_s
from robust_run.tracer.sight.wake.tables import lock_owner, machine_of
from robust_run.tracer.types import Op, RankTrace
from robust_run.tracer.wake.chain import chain_of
from robust_run.tracer.wake.proof import is_proven, lock_circle
from robust_run.tracer.wake.syscalls import blocking_call
from robust_run.tracer.wake.types import WakeReading

#: What programs wait in, and how the chain begins and ends.
WAITS = {
    "sleep": ("import time; time.sleep(60)", "sleeps for", "more"),
    "sleep in a thread": (
        "import threading, time; t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); t.join()",
        "waits for a lock while another of its threads sleeps for",
        "more",
    ),
    "a child": ("import subprocess; subprocess.run(['sleep', '60'])", "waits for its child", "more"),
    "a shell's child": ("import os; os.system('sleep 60; true')", "waits for its child", "more"),
    "a child's output": (
        "import subprocess; subprocess.run('sleep 60', shell=True, stdout=subprocess.PIPE)",
        "waits for",
        "more",
    ),
    "a timed event": ("import threading; threading.Event().wait(60)", "waits for a lock, for", "at most"),
    "a pipe of its own": (
        "import os; r, w = os.pipe(); os.read(r, 1)",
        "waits for data from",
        "only itself is seen to hold",
    ),
    "poll": ("import os, select; r, w = os.pipe(); select.select([r], [], [], 60)", "waits for", "at most"),
    "a connection": (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()",
        "waits for a client that connects to 127.0.0.1:",
        "",
    ),
    "a silent peer": (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); c.recv(1)",
        "waits for data from 127.0.0.1:",
        "",
    ),
    "an event loop": ("import asyncio; asyncio.run(asyncio.sleep(60))", "waits for", "at most"),
    "a FIFO": ("import os; os.mkfifo('fifo'); open('fifo')", "is in open", "fifo"),
    "a file lock": (
        "import fcntl, os\n"
        "f = open('lock', 'w'); fcntl.flock(f, 2)\n"
        "pid = os.fork()\n"
        "if pid: os.waitpid(pid, 0)\n"
        "else: fcntl.flock(open('lock', 'w'), 2)\n",
        "waits for its child",
        "",
    ),
    "a running loop": ("while True: pass", "runs", "runs"),
}


@contextmanager
def program(text: str, folder: Path) -> Iterator[int]:
    """Run a program; it and what it started are gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=folder, start_new_session=True, stdin=subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", list(WAITS))
def test_what_a_program_waits_for(name: str, tmp_path: Path) -> None:
    text, begins, ends = WAITS[name]
    with program(text, tmp_path) as pid:

        def told() -> bool:
            chain = chain_of(read(pid, budget_s=10.0))
            return chain is not None and chain.sentence.startswith(begins) and ends in chain.sentence

        wait_for(told, f"the wait of {name}", 60.0)


def test_a_circle_of_two_locks_is_told_as_unknown_and_never_as_a_proof(tmp_path: Path) -> None:
    text = """
import threading, time
a, b = threading.Lock(), threading.Lock()
def other():
    with b: time.sleep(0.3); a.acquire()
threading.Thread(target=other, daemon=True).start()
with a: time.sleep(0.2); b.acquire()
"""
    with program(text, tmp_path) as pid:
        wait_for(
            lambda: (chain := chain_of(read(pid))) and chain.sentence == "waits for the other thread", "both locks"
        )


CIRCLE = """
import ctypes, signal, threading, time
{before}
def other():
    {take_b}
    time.sleep(0.3)
    {wait_a}
threading.Thread(target=other, daemon=True).start()
{take_a}
time.sleep(0.2)
{wait_b}
"""
RLOCKS = {
    "before": "a, b = threading.RLock(), threading.RLock()",
    "take_a": "a.acquire()",
    "take_b": "b.acquire()",
    "wait_a": "a.acquire()",
    "wait_b": "b.acquire()",
}
MUTEXES = {
    "before": "libc = ctypes.CDLL(None); a, b = ctypes.create_string_buffer(40), ctypes.create_string_buffer(40)",
    "take_a": "libc.pthread_mutex_lock(a)",
    "take_b": "libc.pthread_mutex_lock(b)",
    "wait_a": "libc.pthread_mutex_lock(a)",
    "wait_b": "libc.pthread_mutex_lock(b)",
}
BEHIND = (
    RLOCKS["before"]
    + """
def third():
    b.acquire(); time.sleep(0.3); c.acquire()
c = threading.RLock(); threading.Thread(target=third, daemon=True).start(); time.sleep(0.1)
"""
)
#: Programs whose main thread waits in a circle of locks, or for one, for ever.
CIRCLES = {
    "of RLocks": RLOCKS,
    "of mutexes": MUTEXES,
    "of both": {
        **RLOCKS,
        "before": f"{RLOCKS['before']}; {MUTEXES['before'].replace('a, b', 'c, d')}",
        "take_a": "libc.pthread_mutex_lock(c)",
        "wait_a": "libc.pthread_mutex_lock(c)",
    },
    "of a mutex with itself": {**MUTEXES, "take_b": "", "wait_a": "", "wait_b": "libc.pthread_mutex_lock(a)"},
    "of others": {**RLOCKS, "before": BEHIND, "take_a": "", "take_b": "c.acquire()", "wait_a": "b.acquire()"},
}
#: The same, but something does or may take a thread out of its wait.
NO_CIRCLES = {
    "a time limit": {**RLOCKS, "wait_b": "b.acquire(timeout=60)"},
    "a poller": {**RLOCKS, "wait_a": "while not a.acquire(timeout=0.5): pass"},
    "an alarm that raises": {
        **RLOCKS,
        "before": f"{RLOCKS['before']}; signal.signal(signal.SIGALRM, lambda *_: 1 / 0)",
    },
    "an owner that sleeps": {**RLOCKS, "wait_a": "time.sleep(60)"},
    "an owner that has ended": {**RLOCKS, "wait_a": ""},
    "plain locks": {**RLOCKS, "before": "a, b = threading.Lock(), threading.Lock()"},
}


def need_owners_of(before: str) -> None:
    """Skip where a program's locks tell no owner."""
    if "RLock" in before and sys.version_info >= (3, 14):
        pytest.skip("owners of an RLock are read of CPython 3.10 to 3.13")


def three_readings(pid: int, root: str = "/proc") -> tuple[WakeReading, ...]:
    return asyncio.run(wake_readings(pid, root, asyncio.sleep, lambda pid, root: read(pid, root, budget_s=10.0)))


@pytest.mark.parametrize("name", list(CIRCLES))
def test_a_circle_of_locks_with_owners_is_proven(name: str, tmp_path: Path) -> None:
    need_owners_of(CIRCLES[name]["before"])
    with program(CIRCLE.format(**CIRCLES[name]), tmp_path) as pid:
        wait_for(lambda: lock_circle(read(pid, budget_s=10.0)), f"a circle {name}", 60.0)
        found = three_readings(pid)
    assert len(found) == 3 and is_proven(found)
    chain = chain_of(found[-1])
    assert (
        chain is not None and chain.sentence.startswith("waits for a lock that ") and chain.sentence.endswith(" holds")
    )


@pytest.mark.parametrize("name", list(NO_CIRCLES))
def test_what_may_still_go_on_is_never_a_proof(name: str, tmp_path: Path) -> None:
    with program(CIRCLE.format(**NO_CIRCLES[name]), tmp_path) as pid:
        wait_for(lambda: in_futexes(read(pid, budget_s=10.0)), f"locks with {name}", 60.0)
        assert not is_proven([read(pid, budget_s=10.0) for _ in range(3)])
        found = three_readings(pid)
    assert len(found) == 1 or not is_proven(found), found


def in_futexes(reading: WakeReading) -> bool:
    """Whether the main thread waits for a lock, and the other does so, too, or sleeps, or has ended."""
    rank = reading.processes[0]
    calls = [blocking_call(rank.machine, thread.call) for thread in rank.threads]
    kinds = [call.kind if call is not None else "" for call in calls]
    return kinds[0] == "futex" and set(kinds) <= {"futex", "sleep", "select"}  # Python 3.10 sleeps in a select


def test_a_lock_of_python_is_told_by_who_holds_it_and_what_that_thread_waits_for(tmp_path: Path) -> None:
    need_owners_of(RLOCKS["before"])
    with program(CIRCLE.format(**NO_CIRCLES["an owner that sleeps"]), tmp_path) as pid:

        def told() -> bool:
            chain = chain_of(read(pid, budget_s=10.0))
            sentence = chain.sentence if chain is not None else ""
            return sentence.startswith("waits for a lock that its thread ") and " holds, which sleeps for " in sentence

        wait_for(told, "the owner and its sleep", 60.0)


def test_who_owns_a_lock_is_the_line_above_those_that_wait() -> None:
    table = (
        "1: POSIX  ADVISORY  WRITE 10 08:01:5 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 20 08:01:6 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 21 08:01:6 0 EOF\n"
        "3: OFDLCK ADVISORY  WRITE -1 08:01:7 0 EOF\n"
        "3: -> OFDLCK ADVISORY  WRITE 31 08:01:7 0 EOF\n"
    )
    assert [lock_owner(table, pid) for pid in (21, 31, 10, 99)] == [20, -1, None, None]
    assert lock_owner("nonsense\n1: ->\n\0\n", 1) is None


def test_a_process_that_is_gone_gives_an_empty_reading() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    found = read(process.pid)
    assert not found.processes and chain_of(found) is None


def test_what_takes_too_long_is_cut_short_and_said() -> None:
    ticks = iter(range(10_000))
    found = read(os.getpid(), budget_s=1.0, spent_s=lambda: float(next(ticks)))
    assert any("more than" in line for line in found.unread)


def test_a_folder_that_is_no_proc_gives_an_empty_reading(tmp_path: Path) -> None:
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    (tmp_path / "7" / "stat").write_bytes(b"\0\xff) R")
    assert not read(7, str(tmp_path)).processes


def test_whose_numbers_system_calls_have_is_read_from_the_program(tmp_path: Path) -> None:
    assert machine_of(os.getpid()) in ("x86_64", "aarch64", "")
    for head, machine in (
        (b"\x7fELF\x02\x01" + bytes(12) + (183).to_bytes(2, "little"), "aarch64"),
        (b"\x7fELF\x01\x01" + bytes(12) + (62).to_bytes(2, "little"), ""),  # 32 bits
        (b"#!/bin/sh", ""),
    ):
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / "exe").write_bytes(head)
        assert machine_of(1, str(tmp_path)) == machine


def test_a_reader_that_is_stuck_is_given_up_and_not_joined_by_a_second() -> None:
    release = threading.Event()
    calls: list[int] = []

    def stuck(pid: int, root: str) -> WakeReading:
        calls.append(pid)
        release.wait(60.0)
        raise OSError

    async def twice() -> list[WakeReading | None]:
        return [await wake_reading(4_000_000, "/proc", stuck), await wake_reading(4_000_000, "/proc", stuck)]

    try:
        assert asyncio.run(twice()) == [None, None]
        assert calls == [4_000_000]
    finally:
        release.set()


def test_a_rank_that_waits_for_its_peers_needs_no_chain() -> None:
    def trace(*ops: Op) -> RankTrace:
        return RankTrace(rank=0, world_size=2, pid=1, steps=0, last_at_s=0.0, blocked_s=0.0, ops=ops, groups=())

    waiting = Op(group="0", op="all_reduce", seq=1, state="waiting", at_s=0.0)
    assert not needs_chain(trace(waiting))
    assert needs_chain(None) and needs_chain(trace())
    assert needs_chain(trace(Op(group="0", op="all_reduce", seq=1, state="waiting", at_s=0.0, thread=1)))


def test_for_how_long_no_byte_has_come_is_counted_over_all_connections_of_a_process(tmp_path: Path) -> None:
    text = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
quiet = socket.create_connection(server.getsockname()); quiet_end, _ = server.accept()
busy = socket.create_connection(server.getsockname()); busy_end, _ = server.accept()
quiet_end.send(b"x")
time.sleep({pause})
for _ in range({messages}):
    busy_end.send(b"x"); busy.recv(1); time.sleep(0.2)
time.sleep(60)
"""
    with program(text.format(pause=2, messages=0), tmp_path) as pid:
        wait_for(lambda: quiet_times_s([pid]).get(pid, 0.0) > 1.5, "a silence of its own", 60.0)
    with program(text.format(pause=0, messages=300), tmp_path) as pid:
        wait_for(lambda: pid in quiet_times_s([pid]), "its connections", 60.0)
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            assert quiet_times_s([pid])[pid] < 5.0, "bytes come on one of them"
            time.sleep(0.1)


def test_of_a_process_without_connections_or_without_rights_no_silence_is_known(tmp_path: Path) -> None:
    with program("import time; time.sleep(60)", tmp_path) as pid:
        assert quiet_times_s([pid]) == {}
    assert quiet_times_s([pid, os.getpid()], str(tmp_path)) == {}
    assert quiet_times_s([]) == {}
