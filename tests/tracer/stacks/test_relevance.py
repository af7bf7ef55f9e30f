"""Whose work keeps a rank from being called idle: that of those who can wake it, and nobody else's."""

from __future__ import annotations

import pytest
from seen_ranks import STANDARD, process, sight, stack

from robust_run.tracer.stacks.activity import LOOK_S, activity_of
from robust_run.tracer.types import ProcessSight, RankSight, ThreadUse
from robust_run.tracer.wake.types import DescriptorReading, SocketReading, WakeReading
from tests.tracer.wake import readings
from tests.tracer.wake.readings import AT_S, PID, reading, thread, time_at

MB = 1_000_000
SLEEPS = stack("/app/train.py:8 wait", "/app/train.py:90 <module>")
DOWNLOADS = stack(f"{STANDARD}/urllib/request.py:216 urlopen", "/app/train.py:8 fetch", "/app/train.py:90 <module>")
NOTHING = ThreadUse(cpu=0.0, io_bytes=0, starved=0.0)
LONG_SLEEP = thread("clock_nanosleep", 1, 1, 64, at2=time_at(AT_S + 600))
SHORT_SLEEP = thread("clock_nanosleep", 1, 1, 64, at2=time_at(AT_S + 60))
FOR_A_THREAD = thread("futex", 64, 0x80)
IDLE_THREAD = thread("futex", 96, 0x80, tid=101)
FOR_A_CHILD = thread("wait4", 200)


def rank(wake: WakeReading | None, *children: ProcessSight, where=SLEEPS, **used: object) -> RankSight:
    """Return a rank whose main thread did nothing while its process used what is given."""
    return sight(process(where, where, pid=PID, main=NOTHING, **used), *children, wake=wake)


def in_call(*threads: object, children: tuple[int, ...] = (), **more: object) -> WakeReading:
    return reading(readings.process(*threads, children=children), **more)  # type: ignore[arg-type]


def writes_a_log() -> dict[str, object]:
    """Return what a process used of which a side thread writes 250 kB/s."""
    return {"cpu": 0.02, "io_bytes": int(250_000 * LOOK_S)}


def monitor(pid: int = 300) -> ProcessSight:
    return process(pid=pid, is_rank=False, command="monitor", state="R", cpu=0.5, io_bytes=MB, parent=PID)


def test_a_side_thread_that_writes_a_log_does_not_wake_a_main_thread_that_sleeps_for_ten_minutes() -> None:
    assert activity_of(rank(in_call(LONG_SLEEP, IDLE_THREAD), **writes_a_log())).kind == "idle"


def test_it_may_wake_one_that_waits_for_a_thread() -> None:
    assert activity_of(rank(in_call(FOR_A_THREAD, IDLE_THREAD), **writes_a_log())).kind == "working"


def test_it_may_do_what_a_loop_looks_for_that_sleeps_for_a_minute() -> None:
    assert activity_of(rank(in_call(SHORT_SLEEP, IDLE_THREAD), **writes_a_log())).kind == "working"


@pytest.mark.parametrize("wake", [None, in_call(), in_call(thread("nanosleep", 64))])
def test_all_work_counts_where_the_kernel_does_not_tell(wake: WakeReading | None) -> None:
    assert activity_of(rank(wake, **writes_a_log())).kind == "working"


def test_a_child_that_reads_proc_does_not_wake_a_main_thread_that_waits_for_another_child() -> None:
    wake = in_call(FOR_A_CHILD, children=(200, 300))
    waited = process(pid=200, is_rank=False, command="tool", parent=PID)
    assert activity_of(rank(wake, waited, monitor())).kind == "idle"
    busy = process(pid=200, is_rank=False, command="tool", state="R", cpu=0.9, parent=PID)
    assert activity_of(rank(wake, busy, monitor())).kind == "working"


def test_the_work_of_a_childs_children_is_the_childs() -> None:
    wake = in_call(FOR_A_CHILD, children=(200,))
    shell = process(pid=200, is_rank=False, command="sh", parent=PID)
    tool = process(pid=201, is_rank=False, command="rsync", io_bytes=5 * MB, parent=200)
    assert activity_of(rank(wake, shell, tool)).kind == "working"


def test_a_main_thread_that_is_kept_from_a_cpu_is_at_work_whatever_others_do() -> None:
    used = ThreadUse(cpu=0.01, io_bytes=0, starved=0.6)
    starved = sight(process(SLEEPS, SLEEPS, pid=PID, main=used, starved=0.6), wake=in_call(LONG_SLEEP))
    assert activity_of(starved).kind == "working"


def on_a_connection(**counts: float) -> WakeReading:
    """Return a reading of a rank that waits for data of a service."""
    end = DescriptorReading(fd=5, target="socket:[9]", kind="socket")
    other = SocketReading(inode=9, kind="tcp", here="10.0.0.1:4", there="10.0.0.3:443", **counts)  # type: ignore[arg-type]
    return reading(readings.process(thread("recvfrom", 5), descriptors=(end,)), sockets=(other,))


def test_data_that_come_are_work_though_no_file_is_read() -> None:
    told = activity_of(rank(on_a_connection(received_bytes=40_000, quiet_s=0.02)))
    assert (told.kind, told.reason) == ("working", "receives data from 10.0.0.3:443 in train.py:8 wait")


def test_a_server_that_never_answers_is_no_download() -> None:
    told = activity_of(rank(on_a_connection(received_bytes=0, quiet_s=12.0), where=DOWNLOADS))
    assert told.kind == "idle"
    assert told.reason.startswith("waiting for data from 10.0.0.3:443, which has sent nothing yet")


def test_a_download_that_pauses_for_a_moment_goes_on() -> None:
    assert activity_of(rank(on_a_connection(received_bytes=100, quiet_s=3.0), where=DOWNLOADS)).kind == "working"


def test_a_debugger_whose_person_says_nothing_is_left_to_the_person() -> None:
    debugs = stack("/opt/py/lib/python3.11/pdb.py:9 interaction", "/app/train.py:90 <module>")
    assert activity_of(rank(on_a_connection(received_bytes=100, quiet_s=600.0), where=debugs)).kind == "working"


def test_a_download_is_believed_where_bytes_are_not_counted() -> None:
    assert activity_of(rank(on_a_connection(), where=DOWNLOADS)).kind == "working"
