"""When nobody can wake a rank: the one thing that is a proof, and all that looks like it and is none."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable

import msgspec
import pytest

from robust_run.tracer.files.ring_format import stacks_signal
from robust_run.tracer.wake.proof import is_proven, lock_circle
from robust_run.tracer.wake.types import HeldLockReading, ProcessReading, ThreadReading, WakeReading
from tests.tracer.wake import readings
from tests.tracer.wake.readings import AT_S, PID, reading, time_at

OTHER, THIRD = 101, 102
MUTEX_WAIT, RLOCK_WAIT, ANY = 0x80, 0x189, 0xFFFFFFFF
HARMLESS = (signal.SIGINT, 33, stacks_signal())
Change = Callable[[WakeReading], WakeReading]


def mutex(owner: int, state: int = 2, users: int = 1, kind: int = 0) -> bytes:
    """Return a `pthread_mutex_t` as it is in memory."""
    return struct.pack("<IIiIi4x", state, 0, owner, users, kind)


def at_mutex(tid: int, word: int, data: bytes, *, state: str = "S") -> ThreadReading:
    return readings.thread("futex", word, MUTEX_WAIT, 2, tid=tid, state=state, at0=data)


def at_rlock(tid: int, word: int) -> ThreadReading:
    return readings.thread("futex", word, RLOCK_WAIT, 0, 0, 0, ANY, tid=tid)


def signals(*numbers: int) -> int:
    return sum(1 << (number - 1) for number in numbers)


def holding(*threads: ThreadReading, held: tuple[HeldLockReading, ...] = (), caught: int | None = 2) -> WakeReading:
    made = msgspec.structs.replace(readings.process(*threads), held_locks=held, caught_signals=caught)
    return reading(made)


def held(waiter: int, word: int, owner: int) -> HeldLockReading:
    return HeldLockReading(waiter=waiter, word=word, owner=owner)


MUTEXES = holding(at_mutex(PID, 64, mutex(OTHER)), at_mutex(OTHER, 128, mutex(PID)), caught=signals(*HARMLESS))
RLOCKS = holding(at_rlock(PID, 64), at_rlock(OTHER, 128), held=(held(PID, 64, OTHER), held(OTHER, 128, PID)))
BEHIND = holding(
    at_mutex(PID, 64, mutex(OTHER)), at_mutex(OTHER, 128, mutex(THIRD)), at_mutex(THIRD, 192, mutex(OTHER))
)
ITSELF = holding(at_mutex(PID, 64, mutex(PID)))


def later(found: WakeReading, seconds: float) -> WakeReading:
    return msgspec.structs.replace(found, at_s=found.at_s + seconds)


def thrice(found: WakeReading) -> list[WakeReading]:
    return [found, later(found, 2.1), later(found, 2.2)]


@pytest.mark.parametrize("found", [MUTEXES, RLOCKS, BEHIND, ITSELF])
def test_a_circle_of_owners_that_stands_still_is_a_proof(found: WakeReading) -> None:
    assert is_proven(thrice(found))


def test_a_reading_kept_in_a_file_proves_the_same() -> None:
    kept = [msgspec.json.decode(msgspec.json.encode(one), type=WakeReading) for one in thrice(RLOCKS)]
    assert is_proven(kept)


def test_one_reading_or_two_prove_nothing() -> None:
    assert not is_proven([])
    assert not is_proven([MUTEXES])
    assert not is_proven(thrice(MUTEXES)[:2])


@pytest.mark.parametrize("times_s", [(0.0, 1.0, 1.1), (0.0, 2.1, 9.0), (0.0, 2.1, 2.0), (0.0, 0.1, 2.2)])
def test_readings_that_are_near_each_other_or_too_old_prove_nothing(times_s: tuple[float, ...]) -> None:
    assert not is_proven([later(MUTEXES, seconds) for seconds in times_s])


def test_of_a_circle_without_the_main_thread_nothing_is_said_of_the_rank() -> None:
    others = holding(
        readings.thread("clock_nanosleep", 1, 1, 64, at2=time_at(AT_S + 30)),
        at_mutex(OTHER, 64, mutex(THIRD)),
        at_mutex(THIRD, 128, mutex(OTHER)),
    )
    assert lock_circle(others) is None


def of_rank(**changes: object) -> Change:
    def change(found: WakeReading) -> WakeReading:
        rank = msgspec.structs.replace(found.processes[0], **changes)
        return msgspec.structs.replace(found, processes=(rank, *found.processes[1:]))

    return change


def of_thread(position: int, **changes: object) -> Change:
    def change(found: WakeReading) -> WakeReading:
        threads = list(found.processes[0].threads)
        threads[position] = msgspec.structs.replace(threads[position], **changes)
        return of_rank(threads=tuple(threads))(found)

    return change


def arguments(*given: int) -> dict[str, object]:
    return {"arguments": (*given, *[0] * (6 - len(given)))}


NEVER: dict[str, Change] = {
    "a handler of SIGALRM, which alarm and setitimer may call": of_rank(caught_signals=signals(signal.SIGALRM)),
    "a handler of SIGCHLD, as of a data loader": of_rank(caught_signals=signals(signal.SIGCHLD, signal.SIGINT)),
    "a handler of SIGTERM or SIGUSR1, as of a scheduler's warning": of_rank(caught_signals=signals(signal.SIGUSR1)),
    "a handler of SIGABRT, which another process may send": of_rank(caught_signals=signals(signal.SIGABRT)),
    "signals that could not be read": of_rank(caught_signals=None),
    "a debugger": of_rank(tracer=4711),
    "a cgroup that keeps it frozen": of_rank(frozen_by="/sys/fs/cgroup/a/cgroup.freeze"),
    "another architecture": of_rank(machine="riscv64"),
    "32 bits": of_rank(machine=""),
    "a thread that runs": of_thread(1, state="R"),
    "a thread that is stopped, and may be continued": of_thread(1, state="T"),
    "a thread that waits for a disk": of_thread(1, state="D"),
    "a thread whose call could not be read": of_thread(1, call=None, arguments=()),
    "a thread that was not looked at": lambda found: of_rank(threads=found.processes[0].threads[:1])(found),
    "a time limit": of_thread(0, **arguments(64, MUTEX_WAIT, 2, 4096)),
    "memory that is shared with other processes": of_thread(0, **arguments(64, 0, 2)),
    "a lock that lends its priority": of_thread(0, **arguments(64, 0x86, 0)),
    "a semaphore or condition variable": of_thread(0, **arguments(64, RLOCK_WAIT, 0, 0, 0, ANY)),
    "`restart_syscall`, whose arguments are lost": of_thread(0, call=219),
    "`pause`": of_thread(0, call=34),
    "`futex_waitv`": of_thread(0, call=449),
    "`io_uring_enter`": of_thread(0, call=426),
    "memory that could not be read": of_thread(0, pointed=()),
    "no owner noted": of_thread(0, pointed=((0, mutex(0)),)),
    "an owner that has ended": of_thread(0, pointed=((0, mutex(999)),)),
    "a lock that was just released": of_thread(0, pointed=((0, mutex(OTHER, state=0)),)),
    "a lock for which nobody is said to wait": of_thread(0, pointed=((0, mutex(OTHER, state=1)),)),
    "a lock that nobody uses": of_thread(0, pointed=((0, mutex(OTHER, users=0)),)),
    "a robust lock, which its owner's end releases": of_thread(0, pointed=((0, mutex(OTHER, kind=16)),)),
    "a lock that processes share": of_thread(0, pointed=((0, mutex(OTHER, kind=128)),)),
    "an owner that sleeps": of_thread(1, call=230, **arguments(1, 1, 64)),
    "an owner that waits for a service": of_thread(1, call=45, **arguments(5)),
    "an owner that waits for a child": of_thread(1, call=61, **arguments(4711)),
    "an owner that reads a pipe": of_thread(1, call=0, **arguments(5)),
    "an owner that waits for a file lock": of_thread(1, call=73, **arguments(5, 2)),
}


@pytest.mark.parametrize("what", NEVER)
def test_this_is_never_a_proof(what: str) -> None:
    assert lock_circle(NEVER[what](MUTEXES)) is None
    for position in range(3):  # nor where it was so in one of the readings
        seen = thrice(MUTEXES)
        seen[position] = NEVER[what](seen[position])
        assert not is_proven(seen)


MOVED: dict[str, Change] = {
    "a thread that woke and slept again: a poller": of_thread(1, switches=1),
    "a thread that ran": of_thread(0, run_ns=1),
    "another lock": of_thread(0, **arguments(72, MUTEX_WAIT, 2)),
    "another process of the same number": of_rank(start_ticks=7),
}


@pytest.mark.parametrize("what", MOVED)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_what_moves_is_no_proof(what: str, position: int) -> None:
    seen = thrice(MUTEXES)
    seen[position] = MOVED[what](seen[position])
    assert lock_circle(seen[position]) is not None
    assert not is_proven(seen)


def test_an_owner_of_another_lock_of_python_is_not_the_owner_of_this_one() -> None:
    rank: ProcessReading = RLOCKS.processes[0]
    elsewhere = msgspec.structs.replace(rank, held_locks=(held(PID, 999, OTHER), held(OTHER, 128, PID)))
    assert lock_circle(msgspec.structs.replace(RLOCKS, processes=(elsewhere,))) is None
