"""How long a rank waits for its DataLoader: written by the worker after each step, read by the agent, sent with its pace."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from worker_side import load_worker_side

from robust_run.tracer.files import data_waits, ring
from robust_run.tracer.pace.measure import pace_of
from robust_run.tracer.types import StepMark


class Ring:
    """A ring of a worker, and the loader's half in it."""

    def __init__(self, path: str) -> None:
        ring.create(path, 0, 1)
        side = load_worker_side()
        self.path = path
        self.written = side.load("recorder").Ring(path, lambda reason: pytest.fail(str(reason)))
        self.module = side.load("loader")
        self.waits = self.module.Waits(self.written)

    def step(self, waited_s: float = 0.0) -> None:
        self.waits.waited_ns += int(1e9 * waited_s)
        self.written.mark_step()
        self.waits.mark()

    def read(self) -> dict[int, float]:
        reader = ring.RingReader(self.path)
        try:
            assert reader.header() is not None
            return dict(reader.data_waits())
        finally:
            reader.close()


@pytest.fixture
def rank(tmp_path: Path) -> Ring:
    return Ring(str(tmp_path / "ring"))


def test_both_sides_know_one_layout(rank: Ring) -> None:
    assert (rank.module.DATA_AT, rank.module.DATA_CELLS) == (data_waits.DATA_AT, data_waits.DATA_CELLS)
    assert data_waits.DATA_AT + data_waits.DATA_BYTES <= 1024  # where what `clocks` says begins


def test_waits_of_the_newest_steps_are_read(rank: Ring) -> None:
    for _ in range(300):
        rank.step(0.5)
    found = rank.read()
    assert max(found) == 300 and len(found) == data_waits.DATA_CELLS - 1
    assert found[300] == 150.0 and found[299] == 149.5


def test_a_program_that_never_waits_for_data_says_nothing(rank: Ring) -> None:
    for _ in range(30):
        rank.step()
    assert rank.read() == {}


def test_an_iterator_s_results_and_exceptions_pass_and_only_the_main_thread_counts(rank: Ring) -> None:
    class Iterator:
        def __init__(self) -> None:
            self.left = 2

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

    rank.waits.install(SimpleNamespace(_BaseDataLoaderIter=Iterator))
    aside = threading.Thread(target=next, args=(Iterator(),))
    aside.start()
    aside.join()
    assert rank.waits.waited_ns == 0
    one = Iterator()
    assert [next(one), next(one)] == [1, 0]
    with pytest.raises(StopIteration):
        next(one)
    assert rank.waits.waited_ns > 0 and not rank.waits.is_inside


def test_a_step_s_wait_for_data_is_told_with_its_own_time() -> None:
    marks = [StepMark(10.0 + 0.1 * n, 0.02 * n) for n in range(40)]
    waits = {step: 0.03 * step for step in range(1, 41)}
    pace = pace_of(marks, 40, rank=0, node="a", data_waits=waits)
    assert pace is not None and pace.own_ms[-1] == 80.0
    assert pace.data_ms[-1] == 30.0 and len(pace.data_ms) == len(pace.own_ms)
    few = pace_of(marks, 40, rank=0, node="a", data_waits={step: 1.0 * step for step in range(15, 41)})
    assert few is not None and set(few.data_ms) == {
        80.0
    }  # what is not known is what it was of late, within the own time
    none = pace_of(marks, 40, rank=0, node="a")
    assert none is not None and none.data_ms == ()


@pytest.mark.parametrize("content", [b"", b"\xff" * data_waits.DATA_BYTES, b"\1" * 7])
def test_garbage_is_no_wait(content: bytes) -> None:
    assert not data_waits.parse(content, 50, 50)
