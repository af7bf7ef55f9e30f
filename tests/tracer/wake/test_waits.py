"""What a thread waits for, from what the kernel told of it: until when, and who can wake it."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.wake.chain import chain_of
from robust_run.tracer.wake.types import (
    DescriptorReading,
    HolderReading,
    LockReading,
    ProcessReading,
    SocketReading,
    ThreadReading,
    ThreadWait,
    WakeReading,
)
from robust_run.tracer.wake.waits import wait_of
from tests.tracer.wake.readings import AT_S, PID, UNIX_S, process, reading, thread, time_at

MINUS_ONE = 0xFFFFFFFF
PIPE = "pipe:[77]"


def judged(one: ThreadReading, **more: object) -> ThreadWait:
    """Return what a thread that is alone in its process waits for."""
    machine = str(more.pop("machine", "x86_64"))
    made = process(
        one, machine=machine, **{name: more.pop(name) for name in ("descriptors", "children") if name in more}
    )  # type: ignore[arg-type]
    return wait_of(reading(made, **more), made, one)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_sleep_until_a_known_second_is_exact(machine: str) -> None:
    wait = judged(thread("clock_nanosleep", 1, 1, 64, machine=machine, at2=time_at(AT_S + 12.5)), machine=machine)
    assert wait.doing == "sleeps for 12 s more"
    assert wait.until_s == AT_S + 12.5 and wait.is_exact
    assert [waker.kind for waker in wait.wakers] == ["itself"]


def test_a_sleep_that_counts_from_its_beginning_ends_at_the_latest_then() -> None:
    wait = judged(thread("nanosleep", 64, at0=time_at(5)))
    assert wait.until_s == AT_S + 5 and not wait.is_exact


@pytest.mark.parametrize(
    "one",
    [
        thread("pselect6", 0, 0, 0, 0, 64, at4=time_at(5)),
        thread("poll", 0, 0, 5000),
        thread("ppoll", 0, 0, 64, at2=time_at(5)),
    ],
)
def test_who_waits_for_no_descriptor_sleeps(one: ThreadReading) -> None:
    """As `time.sleep` of Python 3.10."""
    wait = judged(one)
    assert (wait.doing, wait.until_s, wait.is_exact) == ("sleeps for at most 5.0 s more", AT_S + 5, False)
    assert [waker.kind for waker in wait.wakers] == ["itself"]


def test_a_sleep_until_a_time_of_day_is_not_exact_because_that_clock_is_set() -> None:
    wait = judged(thread("clock_nanosleep", 0, 1, 64, at2=time_at(UNIX_S + 30)))
    assert wait.until_s == pytest.approx(AT_S + 30) and not wait.is_exact


def test_nothing_is_said_of_clocks_of_another_time_namespace() -> None:
    one = thread("clock_nanosleep", 1, 1, 64, at2=time_at(AT_S + 12))
    made = process(one, same_clocks=False)
    assert wait_of(reading(made), made, one).until_s is None


def test_a_sleep_of_years_is_for_ever() -> None:
    assert judged(thread("nanosleep", 64, at0=time_at(2**33))).until_s is None


def test_memory_that_cannot_be_read_leaves_the_end_unknown() -> None:
    wait = judged(thread("clock_nanosleep", 1, 1, 64))
    assert wait.until_s is None and [waker.kind for waker in wait.wakers] == ["unknown"]


@pytest.mark.parametrize(
    ("operation", "data", "left_s"),
    [
        (0x189, time_at(UNIX_S + 7), 7.0),  # FUTEX_WAIT_BITSET, private, until a time of day
        (0x89, time_at(AT_S + 7), 7.0),  # the same of the monotonic clock
        (0x80, time_at(7), 7.0),  # FUTEX_WAIT, private: from now
    ],
)
def test_a_lock_with_a_time_limit(operation: int, data: bytes, left_s: float) -> None:
    wait = judged(thread("futex", 64, operation, 0, 64, at3=data))
    assert wait.until_s == pytest.approx(AT_S + left_s)
    assert wait.doing == "waits for a lock, for 7.0 s at most"


def test_a_private_lock_is_released_by_a_thread_and_a_shared_one_by_anybody_who_has_it_mapped() -> None:
    main, other = thread("futex", 64, 0x80), thread("futex", 96, 0x80, tid=101)
    made = process(main, other)
    assert [waker.kind for waker in wait_of(reading(made), made, main).wakers] == ["thread"]
    shared = thread("futex", 64, 0x09)
    made = process(shared, other)
    assert [waker.kind for waker in wait_of(reading(made), made, shared).wakers] == ["unknown"]


def test_a_child_that_is_waited_for_is_named_with_what_it_runs() -> None:
    rank = process(thread("wait4", 200), children=(200,))
    child = process(thread("nanosleep", 64, tid=200, at0=time_at(9)), pid=200, parent=PID, command="curl")
    assert wait_of(reading(rank, child), rank, rank.threads[0]).doing == "waits for its child 200 (curl)"


def test_any_child_will_do_for_who_waits_for_any() -> None:
    rank = process(thread("wait4", MINUS_ONE), children=(200, 201))
    wait = wait_of(reading(rank), rank, rank.threads[0])
    assert [waker.pid for waker in wait.wakers] == [200, 201]


def test_who_holds_the_other_end_of_a_pipe_is_named() -> None:
    end = DescriptorReading(fd=5, target=PIPE, kind="pipe", access="r")
    writer = HolderReading(target=PIPE, pid=300, command="feeder", access="w")
    reader = HolderReading(target=PIPE, pid=301, command="other reader", access="r")
    wait = judged(thread("read", 5), descriptors=(end,), holders=(writer, reader))
    assert wait.doing == "waits for data from pid 300 (feeder)"


def test_a_pipe_without_a_holder_is_unknown_and_not_hopeless() -> None:
    end = DescriptorReading(fd=5, target=PIPE, kind="pipe", access="r")
    for holders in ((), (HolderReading(target=PIPE, pid=PID, command="python", access="w"),)):
        wait = judged(thread("read", 5), descriptors=(end,), holders=holders)
        assert [waker.kind for waker in wait.wakers] == ["unknown"]


@pytest.mark.parametrize(
    ("socket", "doing"),
    [
        ({"received_bytes": 10, "quiet_s": 12.4}, "waits for data from 10.0.0.3:443, no byte for 12 s"),
        ({"received_bytes": 0, "quiet_s": 12.4}, "waits for data from 10.0.0.3:443, which has sent nothing yet"),
        ({"received_bytes": 10, "quiet_s": 0.1}, "waits for data from 10.0.0.3:443"),
        ({}, "waits for data from 10.0.0.3:443"),
    ],
)
def test_a_connection_is_named_by_its_other_end_and_by_its_silence(socket: dict[str, float], doing: str) -> None:
    end = DescriptorReading(fd=5, target="socket:[9]", kind="socket")
    other = SocketReading(inode=9, kind="tcp", here="10.0.0.1:4", there="10.0.0.3:443", **socket)  # type: ignore[arg-type]
    assert judged(thread("recvfrom", 5), descriptors=(end,), sockets=(other,)).doing == doing


def test_a_poll_waits_for_all_it_watches_and_at_most_so_long() -> None:
    polled = struct.pack("<iHHiHH", 5, 1, 0, 6, 4, 0)
    ends = (
        DescriptorReading(fd=5, target=PIPE, kind="pipe", access="r"),
        DescriptorReading(fd=6, target="/dev/pts/1", kind="terminal", access="rw"),
    )
    writer = HolderReading(target=PIPE, pid=300, command="feeder", access="w")
    wait = judged(thread("poll", 64, 2, 3000, at0=polled), descriptors=ends, holders=(writer,))
    assert wait.doing == "waits for pid 300 (feeder) or a person at the terminal /dev/pts/1, for 3.0 s at most"
    assert [waker.kind for waker in wait.wakers] == ["itself", "process", "person"]


def test_an_event_loop_waits_for_what_its_epoll_watches() -> None:
    ends = (
        DescriptorReading(fd=3, target="anon_inode:[eventpoll]", kind="other", watched=((5, "r"),)),
        DescriptorReading(fd=5, target="socket:[9]", kind="socket"),
    )
    other = SocketReading(inode=9, kind="tcp", here="10.0.0.1:4", there="10.0.0.3:443")
    wait = judged(thread("epoll_wait", 3, 64, 10, MINUS_ONE), descriptors=ends, sockets=(other,))
    assert wait.until_s is None and wait.doing == "waits for 10.0.0.3:443"


def test_a_file_lock_is_waited_for_with_its_owner_where_the_kernel_names_one() -> None:
    end = DescriptorReading(fd=4, target="/data/lock", kind="file")
    owned = judged(thread("flock", 4, 2), descriptors=(end,), locks=(LockReading(waiter=PID, owner=7, command="sh"),))
    assert owned.doing == "waits for the file lock of pid 7 (sh)"
    nameless = judged(thread("flock", 4, 2), descriptors=(end,), locks=(LockReading(waiter=PID, owner=-1),))
    assert [waker.kind for waker in nameless.wakers] == ["unknown"]


@pytest.mark.parametrize(
    ("state", "doing"), [("R", "runs"), ("T", "is stopped"), ("t", "is held by a debugger"), ("Z", "has ended")]
)
def test_states_that_need_no_call(state: str, doing: str) -> None:
    assert judged(thread(state=state)).doing.startswith(doing)


@pytest.mark.parametrize("state", ["S", "D", "R", "T"])
def test_what_its_cgroup_keeps_frozen_waits_for_nothing_else(state: str) -> None:
    one = thread("read", 4, state=state)
    made = msgspec.structs.replace(process(one), frozen_by="/sys/fs/cgroup/job/loader/cgroup.freeze")
    wait = wait_of(reading(made), made, one)
    assert wait.doing == "is frozen by the cgroup /sys/fs/cgroup/job/loader"
    assert [waker.words for waker in wait.wakers] == ["a thaw of it"]


@pytest.mark.parametrize("call", [219, 34, 449, 426])  # restart_syscall, pause, futex_waitv, io_uring_enter
def test_calls_that_are_not_understood_are_unknown(call: int) -> None:
    one = ThreadReading(tid=PID, state="S", call=call, arguments=(0,) * 6, waits_in="somewhere")
    wait = judged(one)
    assert [waker.kind for waker in wait.wakers] == ["unknown"] and wait.until_s is None


def test_on_an_architecture_that_is_not_known_nothing_is_concluded() -> None:
    wait = judged(thread("nanosleep", 64, at0=time_at(5)), machine="")
    assert [waker.kind for waker in wait.wakers] == ["unknown"]


def chain(*processes: ProcessReading, **more: object) -> str:
    """Return what a rank waits for, over all links."""
    found = chain_of(reading(*processes, **more))  # type: ignore[arg-type]
    assert found is not None
    return found.sentence


def test_the_chain_goes_on_from_child_to_child_to_a_service() -> None:
    rank = process(thread("wait4", 200), children=(200,))
    shell = process(thread("wait4", MINUS_ONE, tid=200), pid=200, parent=PID, command="sh", children=(201,))
    end = DescriptorReading(fd=5, target="socket:[9]", kind="socket")
    curl = process(thread("recvfrom", 5, tid=201), pid=201, parent=200, command="curl", descriptors=(end,))
    other = SocketReading(inode=9, kind="tcp", here="10.0.0.1:4", there="10.0.0.3:443", received_bytes=1, quiet_s=30.0)
    assert chain(rank, shell, curl, sockets=(other,)) == (
        "waits for its child 200 (sh), which waits for its child 201 (curl), "
        "which waits for data from 10.0.0.3:443, no byte for 30 s"
    )


def test_the_chain_ends_where_one_of_several_may_wake_the_rank() -> None:
    rank = process(thread("wait4", MINUS_ONE), children=(200, 201))
    children = [process(thread("nanosleep", 64, tid=pid, at0=time_at(5)), pid=pid, parent=PID) for pid in (200, 201)]
    assert chain(rank, *children).count("which") == 0


def test_of_a_family_that_holds_a_pipe_the_eldest_is_asked() -> None:
    end = DescriptorReading(fd=5, target=PIPE, kind="pipe", access="r")
    holders = tuple(HolderReading(target=PIPE, pid=pid, command="sh", access="w") for pid in (200, 201))
    rank = process(thread("read", 5), descriptors=(end,))
    shell = process(thread("wait4", 201, tid=200), pid=200, parent=PID, command="sh", children=(201,))
    worker = process(thread("nanosleep", 64, tid=201, at0=time_at(5)), pid=201, parent=200, command="sleep")
    assert chain(rank, shell, worker, holders=holders).endswith("which sleeps for at most 5.0 s more")


def test_two_that_wait_for_each_other_end_the_chain() -> None:
    ends = (DescriptorReading(fd=5, target=PIPE, kind="pipe", access="r"),)
    holders = tuple(HolderReading(target=PIPE, pid=pid, command="python", access="rw") for pid in (PID, 200))
    one = process(thread("read", 5), descriptors=ends)
    two = process(thread("read", 5, tid=200), pid=200, parent=1, descriptors=ends)
    assert chain(one, two, holders=holders).count("which") == 1


def test_a_main_thread_that_waits_for_another_is_told_by_the_one_that_tells_why() -> None:
    main = thread("futex", 64, 0x80)
    idle = thread("futex", 96, 0x80, tid=101)
    busy = thread("clock_nanosleep", 1, 1, 64, tid=102, at2=time_at(AT_S + 14))
    assert chain(process(main, idle, busy)) == "waits for a lock while another of its threads sleeps for 14 s more"
    assert chain(process(main, idle)) == "waits for the other thread"
    assert "runs" in chain(process(main, idle, thread(state="R", tid=103)))


def test_threads_that_were_not_looked_at_may_be_the_ones() -> None:
    main, busy = thread("futex", 64, 0x80), thread("clock_nanosleep", 1, 1, 64, tid=102, at2=time_at(AT_S + 14))
    assert chain(process(main, busy, hidden_threads=3)) == "waits for one of its 4 other threads"


def test_of_a_process_that_is_not_ours_to_read_there_is_no_chain() -> None:
    assert chain_of(reading(process())) is None


def test_a_reading_is_the_same_after_it_was_kept_in_a_file() -> None:
    rank = process(thread("clock_nanosleep", 1, 1, 64, at2=time_at(AT_S + 12)), children=(3,))
    made = reading(rank, locks=(LockReading(waiter=PID, owner=7),))
    kept = msgspec.json.decode(msgspec.json.encode(made), type=WakeReading)
    assert kept == made and chain_of(kept) == chain_of(made)


registers = st.integers(min_value=0, max_value=2**64 - 1)
any_thread = st.builds(
    ThreadReading,
    tid=st.integers(1, 5),
    state=st.sampled_from("RSDTtZXI"),
    call=st.none() | st.integers(0, 450),
    arguments=st.tuples(*[registers | st.integers(0, 9)] * 6),
    pointed=st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=64)), max_size=4).map(tuple),
)
any_descriptor = st.builds(
    DescriptorReading,
    fd=st.integers(0, 9),
    target=st.sampled_from([PIPE, "socket:[9]", "/x", "anon_inode:[eventpoll]", "anon_inode:[pidfd]"]),
    kind=st.sampled_from(["file", "folder", "fifo", "terminal", "device", "pipe", "socket", "other"]),
    access=st.sampled_from(["", "r", "w", "rw"]),
    watched=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "r", "w", "rw"])), max_size=3).map(tuple),
    process=st.sampled_from([0, 0, 2]),
)
any_process = st.builds(
    ProcessReading,
    pid=st.integers(1, 4),
    parent=st.integers(1, 4),
    start_ticks=st.just(1),
    command=st.text(max_size=5),
    machine=st.sampled_from(["", "x86_64", "aarch64"]),
    threads=st.lists(any_thread, max_size=3).map(tuple),
    descriptors=st.lists(any_descriptor, max_size=6).map(tuple),
    children=st.lists(st.integers(1, 4), max_size=2).map(tuple),
)


@given(
    st.lists(any_process, min_size=1, max_size=4),
    st.sampled_from([(), (HolderReading(target=PIPE, pid=2, command="", access="rw"),)]),
)
def test_whatever_a_kernel_may_say_is_judged(
    processes: list[ProcessReading], holders: tuple[HolderReading, ...]
) -> None:
    found = chain_of(reading(*processes, holders=holders))
    assert found is None or (found.sentence and found.arrows)
    for one in processes:
        for each in one.threads:
            wait = wait_of(reading(*processes, holders=holders), one, each)
            assert wait.wakers and wait.doing and (not wait.is_exact or wait.until_s is not None)
