"""What steps consist of, as a GPU has it that nobody waits for; and what is read of the file, whatever lies there."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from types import ModuleType

import pytest
from fake_cuda import FakeCuda, FakeTensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_side import load_worker_side

from robust_run.tracer.files import phases
from robust_run.tracer.types import StepPhases


class Program:
    """A program on a GPU whose steps are timed."""

    def __init__(self, folder: Path, *, initialized: bool = True) -> None:
        self.path = str(folder / "steps.phases")
        phases.create(self.path)
        self.cuda = FakeCuda(initialized=initialized)
        self.gpu = self.cuda.gpu
        self.worker = load_worker_side()
        self.module = self.worker.load("phases")
        self.end_step = self.module.begin(self.path, self.cuda.hooks, self.cuda.torch)
        if self.end_step is not None:
            self.timer = self.end_step.__self__
            self.timer.share = 1e9  # what it costs here says nothing: the GPU is made of Python
            self.end_step()
            passes = self.worker.load("backward").Passes(self.cuda.hooks, lambda: False)
            self.backward = passes.backward(self.cuda.backward)

    def step(self, forward: float = 5.0, backward: float = 9.0, late: float = 0.0, optimizer: float = 2.0) -> None:
        """Make a step of DistributedDataParallel whose last peer is `late`, in milliseconds."""
        self.gpu.compute(forward)
        end_ms = self.gpu.stream.time_ms() + backward + late
        self.backward(FakeTensor(), backward, end_ms)
        self.gpu.compute(optimizer)
        self.end_step()

    def catch_up(self) -> None:
        """Let the GPU do all that it was asked for, and the program make two steps in which nothing is done."""
        self.gpu.now_ms = max(self.gpu.now_ms, self.gpu.main.ready_ms)
        for _ in range(2):
            self.end_step()

    def read(self) -> tuple[StepPhases, ...]:
        return tuple(one for one in phases.read(self.path) if one.step_ms > 0.0)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def lengths(one: StepPhases) -> tuple[float, ...]:
    return tuple(
        round(value, 3)
        for value in (
            one.forward_ms,
            one.forward_waiting_ms,
            one.backward_ms,
            one.backward_waiting_ms,
            one.optimizer_ms,
            one.optimizer_waiting_ms,
        )
    )


def test_both_sides_have_the_same_layout() -> None:
    timer = load_worker_side().load("phase_timer")
    names = ["MAGIC", "VERSION", "RECORDS", "RECORD_CELLS", "RECORDS_AT_CELL", "FILE_BYTES", "UNARMED", "ARMED"]
    names += ["GIVEN_UP", "NO_CLOCK", "EVENTS", "HOST", *(name for name in dir(phases) if name.endswith("_CELL"))]
    assert {name: getattr(timer, name) for name in names} == {name: getattr(phases, name) for name in names}


def test_what_the_last_peer_takes_is_no_time_of_our_own(program: Program) -> None:
    program.step(late=40.0)
    program.step(late=0.0)
    program.catch_up()
    late, early = program.read()
    assert (late.step, lengths(late)) == (2, (5.0, 0.0, 9.0, 40.0, 2.0, 0.0))
    assert (early.step, lengths(early)) == (3, (5.0, 0.0, 9.0, 0.0, 2.0, 0.0))
    assert (late.own_ms, late.waiting_ms, late.step_ms) == (16.0, 40.0, 56.0)


@pytest.mark.parametrize("on_stream", [False, True])
def test_a_collective_is_waited_for_in_the_phase_that_it_is_in(program: Program, on_stream: bool) -> None:
    gpu, cuda = program.gpu, program.cuda
    gpu.compute(3.0)
    cuda.all_reduce(gpu.stream.time_ms() + 7.0, on_stream=on_stream)
    gpu.compute(1.0)
    cuda.in_backward = lambda: cuda.all_reduce(gpu.stream.time_ms() + 11.0, on_stream=on_stream)
    program.backward(FakeTensor(), 6.0, 0.0)
    gpu.compute(2.0)
    cuda.all_reduce(gpu.stream.time_ms() + 0.5, on_stream=on_stream)
    program.end_step()
    program.catch_up()
    assert lengths(program.read()[0]) == (4.0, 7.0, 6.0, 11.0, 2.0, 0.5)


def test_accumulated_passes_add_up_and_a_nested_one_is_part_of_its_own(program: Program) -> None:
    for _ in range(3):
        program.gpu.compute(2.0)
        program.cuda.in_backward = lambda: program.backward(FakeTensor(), 0.0)
        program.cuda.in_backward = None
        program.backward(FakeTensor(), 4.0, 0.0)
    program.end_step()
    program.catch_up()
    assert lengths(program.read()[0]) == (6.0, 0.0, 12.0, 0.0, 0.0, 0.0)


def test_without_a_backward_pass_that_is_seen_all_is_forward(program: Program) -> None:
    program.gpu.compute(8.0)
    program.end_step()
    program.catch_up()
    assert lengths(program.read()[0]) == (8.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_gpu_that_idles_since_data_comes_late_has_a_long_forward(program: Program) -> None:
    program.step()
    program.gpu.now_ms = program.gpu.main.ready_ms + 30.0  # the program loads data, the GPU has nothing to do
    program.step()
    program.catch_up()
    assert [one.forward_ms for one in program.read()] == [5.0, 35.0]


def test_steps_are_read_when_the_gpu_has_come_to_their_end_and_no_sooner(program: Program) -> None:
    for _ in range(3):
        program.step()
    assert program.read() == ()
    program.gpu.now_ms += 20.0
    program.step()
    assert [one.step for one in program.read()] == [2]
    program.catch_up()
    program.catch_up()
    assert [one.step for one in program.read()] == [2, 3, 4, 5]


def test_events_are_used_again(program: Program) -> None:
    for _ in range(50):
        program.step()
        program.gpu.now_ms = program.gpu.main.ready_ms
    made = program.gpu.events_made
    for _ in range(200):
        program.step()
        program.gpu.now_ms = program.gpu.main.ready_ms
    assert program.gpu.events_made == made <= 20
    assert program.read()[-1].step >= 249


def test_a_captured_step_is_left_out_and_nothing_is_asked_of_the_driver_meanwhile(program: Program) -> None:
    program.step()
    program.gpu.now_ms = program.gpu.main.ready_ms
    asked, program.gpu.is_capturing = program.gpu.asked, True
    program.step()
    program.cuda.all_reduce(0.0)
    program.step()
    assert program.gpu.asked == asked
    program.gpu.is_capturing = False
    for _ in range(3):
        program.step()
    program.catch_up()
    program.catch_up()
    assert {one.step for one in program.read()} == {2, 6, 7}  # 5 began while nothing could be marked
    assert not program.worker.said


def test_collectives_on_a_stream_of_their_own_count_where_the_computation_waits_for_that(program: Program) -> None:
    gpu, cuda = program.gpu, program.cuda
    gather = gpu.Stream(9)
    gpu.stream = gather
    cuda.all_reduce(gpu.main.time_ms() + 13.0)
    gathered = gather.record_event()
    gpu.stream = gpu.main
    gpu.compute(4.0)
    gpu.main.wait_event(gathered)
    copy = gpu.Stream(10)
    copy.ready_ms = gpu.main.time_ms() + 6.0
    gpu.main.wait_event(copy.record_event())  # a copy of data is time of our own
    program.end_step()
    program.catch_up()
    assert lengths(program.read()[0]) == (10.0, 9.0, 0.0, 0.0, 0.0, 0.0)


def test_what_another_thread_waits_for_is_not_ours(program: Program) -> None:
    thread = threading.Thread(target=lambda: program.cuda.all_reduce(program.gpu.stream.time_ms() + 5.0))
    thread.start()
    thread.join()
    program.end_step()
    program.catch_up()
    assert lengths(program.read()[0]) == (5.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("switch", ["", "off"])
def test_a_program_without_a_gpu_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv("ROBUST_TRACE_PHASES", switch)
    program = Program(tmp_path, initialized=bool(switch))
    assert program.end_step is None
    assert (program.gpu.asked, program.cuda.hooks.timed) == (0, [])
    assert "wraps" not in dir(program.cuda.Work.wait) and not hasattr(program.cuda.Work.wait, "__wrapped__")
    assert not phases.is_used(program.path) and phases.read(program.path) == ()


def test_a_gpu_that_fails_ends_the_timing_with_one_line_and_nothing_else(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    program.gpu.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    for _ in range(3):
        program.step()
        program.cuda.all_reduce(0.0)
    assert capfd.readouterr().err == (
        "robust-run: timing what steps consist of is off in this worker: RuntimeError: CUDA error: an illegal memory "
        "access was encountered\n"
    )


def test_fewer_steps_are_timed_where_timing_costs_too_much_and_at_last_none(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    program.timer.share = 0.0
    strides = set()
    for _ in range(3000):
        program.step()
        program.gpu.now_ms = program.gpu.main.ready_ms
        strides.add(program.timer.stride)
        if program.timer.making is not None:
            assert program.timer.making.number % program.timer.stride == 0
    assert strides == {1, 2, 4, 8, 16, 32, 64, 128} and program.timer.stopped
    assert "more than 0.0% of a step" in capfd.readouterr().err
    asked = program.gpu.asked
    program.step()
    assert program.gpu.asked == asked


def test_a_gpu_that_is_far_behind_is_asked_less_often(program: Program) -> None:
    for _ in range(100):
        program.step()
    assert program.timer.stride > 1 and program.gpu.events_made < 100
    assert len(program.timer.pending) <= 9


def test_a_step_of_too_many_collectives_is_left_out(program: Program) -> None:
    for _ in range(1100):
        program.cuda.all_reduce(0.0)
    program.end_step()
    program.step()
    program.catch_up()
    assert [one.step for one in program.read()] == [3]


def test_an_exception_of_the_program_passes_and_the_next_step_is_timed(program: Program) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    program.cuda.in_backward = interrupted
    with pytest.raises(KeyboardInterrupt):
        program.backward(FakeTensor())
    program.cuda.in_backward = None
    program.step()
    program.step()
    program.catch_up()
    assert [one.step for one in program.read()] == [2, 3]


def test_a_wait_that_nobody_ends_costs_its_own_step_alone(program: Program) -> None:
    cuda, gpu = program.cuda, program.gpu
    options = type("Options", (), {"asyncOp": False})()
    forgotten = cuda.group.broadcast([], options)  # of a backend that returns a work all the same
    assert forgotten is not None
    program.step()
    for _ in range(2):
        gpu.compute(1.0)
        cuda.all_reduce(gpu.stream.time_ms() + 4.0)
        program.end_step()
    program.catch_up()
    program.catch_up()
    assert [(one.step, one.waiting_ms) for one in program.read()] == [(3, 4.0), (4, 4.0)]


def test_a_forked_child_touches_no_gpu(program: Program) -> None:
    program.step()
    asked, child = program.gpu.asked, os.fork()
    if child == 0:
        program.step()
        program.cuda.all_reduce(0.0)
        os._exit(1 if program.worker.said or program.gpu.asked != asked else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1e6)), max_size=40))
def test_nothing_is_lost_or_counted_twice(marks: list[tuple[int, float]]) -> None:
    at_ms = list(itertools.accumulate((length for _, length in [*marks, (0, 1.0)]), initial=0.0))
    sums = _timer().phases_of([*(kind for kind, _ in marks), 0], lambda begin, end: at_ms[end] - at_ms[begin])
    assert sums is None or sum(sums) == pytest.approx(at_ms[-1])
    assert sums is None or min(sums) >= -1e-3


_LOADED: list[ModuleType] = []


def _timer() -> ModuleType:
    if not _LOADED:
        _LOADED.append(load_worker_side().load("phase_timer"))
    return _LOADED[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(max_size=200), st.integers(0, 2000))
def test_junk_never_breaks_the_reader(tmp_path: Path, junk: bytes, at: int) -> None:
    path = tmp_path / "junk"
    content = bytearray(phases.FILE_BYTES)
    content[:16] = phases.MAGIC + (1).to_bytes(8, "little")
    content[16] = 7
    content[32:40] = (5).to_bytes(8, "little")
    content[at : at + len(junk)] = junk
    path.write_bytes(content[: phases.FILE_BYTES])
    for one in phases.read(str(path)):
        assert 0.0 <= one.step_ms < 1e15


def test_what_is_no_phases_file_has_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.phases"
    assert phases.read(str(path)) == phases.read(str(tmp_path)) == phases.read("a\0b") == ()
    phases.create(str(path))
    newer = bytearray(path.read_bytes())
    newer[8], newer[16] = phases.VERSION + 1, 1
    path.write_bytes(newer)
    assert phases.read(str(path)) == ()
    path.write_bytes(newer[:100])
    assert phases.read(str(path)) == ()


def test_the_file_lies_beside_the_ring_and_beside_copies_of_it() -> None:
    assert phases.beside("/dev/shm/run/attempt_0-3.steps.ring") == "/dev/shm/run/attempt_0-3.steps.phases"
    assert phases.beside("runs/x/attempt_0/3/ring") == "runs/x/attempt_0/3/phases"
