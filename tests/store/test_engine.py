"""The engine: everything is moved, few jobs exist at a time, what may work is tried again, what is slow is read twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
from jobs import wait_for

from robust_run.store.cancelling import Cancellation
from robust_run.store.engine import Hedge, Retry, transfer
from robust_run.store.errors import Cancelled, NotFound, Stalled, StoreError, Unavailable
from robust_run.store.jobs import ReadJob

AT_ONCE = Retry(attempts=4, first_wait_s=0.001, longest_wait_s=0.002)
SOON = Hedge(after_s=0.02)
BUSY = Unavailable("memory://", "f", "busy")


class Counted:
    """A job that does what it is told to, and counts."""

    size_bytes = 10

    def __init__(self, act: Callable[[int], None] = lambda attempt: None) -> None:
        self.act, self.attempts = act, 0

    def run(self, attempt: int) -> None:
        assert attempt == self.attempts
        self.attempts += 1
        self.act(attempt)


def failing(times: int, error: BaseException = BUSY) -> Callable[[int], None]:
    def act(attempt: int) -> None:
        if attempt < times:
            raise error

    return act


class Memory:
    """A store of one file; the first reads of some offsets hang until they are called off."""

    def __init__(self, content: bytes, hanging: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.content, self.hanging = content, dict.fromkeys(hanging, True)
        self.reads: list[int] = []

    def read_into(
        self, path: str, offset_bytes: int, buffers: list[memoryview], cancel: Cancellation | None = None
    ) -> None:
        self.reads.append(offset_bytes)
        if self.hanging.pop(offset_bytes, False):  # in one step: only one of two reads
            called_off = threading.Event()
            assert cancel is not None
            buffers[0][:1] = b"?"
            with cancel.calling(called_off.set):
                assert called_off.wait(60)
            raise Cancelled("memory://", path, "called off")
        for buffer in buffers:
            buffer[:] = self.content[offset_bytes : offset_bytes + len(buffer)]
            offset_bytes += len(buffer)


CONTENT = bytes(range(250)) * 40


def jobs_for(store: Memory, buffer: bytearray, each: int = 100) -> list[ReadJob]:
    view = memoryview(buffer)
    return [ReadJob(store, "f", at, [view[at : at + each]]) for at in range(0, len(buffer), each)]  # type: ignore[arg-type]


def test_all_jobs_are_done_and_counted() -> None:
    jobs, seen = [Counted() for _ in range(50)], []
    done = transfer(jobs, threads=4, progress=seen.append)
    assert (done.jobs, done.size_bytes, done.retries, done.hedges) == (50, 500, 0, 0)
    assert seen == [10] * 50
    assert [job.attempts for job in jobs] == [1] * 50
    assert transfer([], threads=4).jobs == 0


def test_jobs_are_pulled_one_by_one_so_that_memory_is_bounded() -> None:
    lock, alive, most = threading.Lock(), [0], [0]

    def act(_attempt: int) -> None:
        with lock:
            alive[0] -= 1

    def jobs() -> Iterator[Counted]:
        for _ in range(200):
            with lock:
                alive[0] += 1
                most[0] = max(most[0], alive[0])
            yield Counted(act)

    transfer(jobs(), threads=3)
    assert most[0] <= 3


def test_so_many_run_at_once_as_there_are_threads() -> None:
    meeting = threading.Barrier(8)
    transfer([Counted(lambda _: meeting.wait(30) and None) for _ in range(16)], threads=8)
    transfer([Counted()], threads=64)
    assert still_running() == []


def test_what_may_work_is_tried_again() -> None:
    jobs = [Counted(failing(times)) for times in (0, 1, 3)]
    done = transfer(jobs, threads=2, retry=AT_ONCE)
    assert [job.attempts for job in jobs] == [1, 2, 4]
    assert (done.retries, done.size_bytes) == (4, 30)


def test_what_never_works_is_given_up_and_says_how_often_it_was_tried() -> None:
    job = Counted(failing(99, Stalled("hdfs://nn", "f", "no byte for 10 s")))
    with pytest.raises(Stalled, match=r"hdfs://nn/f: no byte for 10 s \(tried 4 times\)"):
        transfer([job], threads=2, retry=AT_ONCE)
    assert job.attempts == 4


@pytest.mark.parametrize("error", [NotFound("x", "f", "no such file"), ValueError("a mistake of ours")])
def test_a_final_error_calls_off_the_rest(error: Exception) -> None:
    first = Counted(failing(99, error))
    without_end = itertools.chain([first], iter(Counted, None))
    with pytest.raises(type(error), match=str(error)):
        transfer(without_end, threads=2, retry=AT_ONCE)
    assert first.attempts == 1


def test_when_it_raises_nothing_is_running_any_more() -> None:
    store, buffer = Memory(CONTENT, hanging={100, 200}), bytearray(1000)
    jobs: list[Counted | ReadJob] = list(jobs_for(store, buffer)[1:3])
    jobs.append(Counted(lambda _: wait_for(lambda: len(store.reads) == 2, "both hang") and failing(1, BUSY)(0)))
    with pytest.raises(Unavailable):
        transfer(jobs, threads=3, retry=Retry(attempts=1))
    assert still_running() == []


def still_running() -> list[threading.Thread]:
    """Threads of the engine; those of other tests may end at any time."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("transfer-")]


def test_the_iterable_may_fail_as_well() -> None:
    def jobs() -> Iterator[Counted]:
        yield Counted()
        raise StoreError("x", "", "no more scratch")

    with pytest.raises(StoreError, match="no more scratch"):
        transfer(jobs(), threads=4)


def test_it_can_be_called_off() -> None:
    stop, store = threading.Event(), Memory(CONTENT, hanging={0})
    jobs = jobs_for(store, bytearray(100))
    threading.Thread(target=lambda: (wait_for(lambda: store.reads, "it hangs"), stop.set()), daemon=True).start()
    with pytest.raises(Cancelled):
        transfer(jobs, threads=1, stop=stop)


def test_what_hangs_is_read_a_second_time_and_its_first_read_called_off() -> None:
    store, buffer, seen = Memory(CONTENT, hanging={300, 700}), bytearray(1000), []

    def jobs() -> Iterator[ReadJob]:
        """Those that hang come when all others are done: a thread that only has to wait for its turn is slow, too."""
        all_of_them = jobs_for(store, buffer)
        yield from (job for job in all_of_them if job.offset_bytes not in (300, 700))
        wait_for(lambda: sum(seen) == 800, "the other reads")
        yield from (all_of_them[3], all_of_them[7])

    done = transfer(jobs(), threads=4, hedge=SOON, progress=seen.append)
    assert buffer == CONTENT[:1000]
    assert done.hedges == 2
    assert sum(seen) == done.size_bytes == 1000
    assert sorted(store.reads) == sorted([*range(0, 1000, 100), 300, 700])


def test_a_second_read_that_fails_leaves_it_to_the_first() -> None:
    release, buffer = threading.Event(), bytearray(100)

    class Slow(Memory):
        def read_into(self, path: str, offset_bytes: int, buffers: list[memoryview], cancel: object = None) -> None:
            if buffers[0].obj is not buffer:  # the second read, into memory of its own
                release.set()
                raise NotFound("memory://", path, "not on this one")
            assert release.wait(60)
            super().read_into(path, offset_bytes, buffers)

    store = Slow(CONTENT)
    done = transfer(jobs_for(store, buffer), threads=2, hedge=SOON)
    assert buffer == CONTENT[:100]
    assert done.hedges == 1


def test_what_is_read_twice_is_checked_both_times() -> None:
    store, buffer, checked = Memory(CONTENT, hanging={0}), bytearray(100), []
    job = ReadJob(store, "f", 0, [memoryview(buffer)], check=lambda views: checked.append(b"".join(views)))  # type: ignore[arg-type]
    transfer([job], threads=2, hedge=SOON)
    assert checked == [CONTENT[:100]]
    assert buffer == CONTENT[:100]


def test_without_hedging_nothing_is_read_twice() -> None:
    store, buffer = Memory(CONTENT), bytearray(1000)
    assert transfer(jobs_for(store, buffer), threads=4).hedges == 0
    assert len(store.reads) == 10
