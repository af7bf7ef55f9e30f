"""Native threads: which may act by themselves, so that nothing is proven beside them, and which cannot."""

from __future__ import annotations

import pytest

from robust_run.tracer.wake.native import may_act

X86 = "x86_64"
PRIVATE, SHARED, TIMED = (0x1000, 0x189, 0, 0), (0x1000, 0x109, 0, 0), (0x1000, 0x189, 0, 0x7F00)


@pytest.mark.parametrize(
    "name", ["gloo_tcp_loop", "pt_gloo_runloop", "pt_workerserver", "pt_autograd_0", "cuda-EvtHandlr"]
)
def test_threads_that_torch_and_cuda_name_do_what_they_were_asked(name: str) -> None:
    assert not may_act(name, X86, 232, (9, 0x1000, 64, 10))


@pytest.mark.parametrize(("machine", "number"), [(X86, 202), ("aarch64", 98)])
def test_an_idle_worker_of_openmp_can_only_be_woken_from_inside(machine: str, number: int) -> None:
    assert not may_act("python", machine, number, PRIVATE)


@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        (230, (1, 0, 0x1000, 0)),  # clock_nanosleep
        (232, (9, 0x1000, 64, 0xFFFFFFFF)),  # epoll_wait
        (0, (5, 0x1000, 100)),  # read
        (202, TIMED),
        (202, SHARED),
        (202, (0x1000, 0x81, 1, 0)),  # it wakes, it does not wait
        (202, ()),
        (None, ()),  # it runs, or that cannot be read
        (219, PRIVATE),  # restart_syscall
    ],
)
def test_what_sleeps_polls_reads_or_runs_may_act(number: int | None, arguments: tuple[int, ...]) -> None:
    assert may_act("python", X86, number, arguments)


def test_of_an_unknown_machine_nothing_is_known() -> None:
    assert may_act("python", "", 202, PRIVATE)


@pytest.mark.parametrize("name", ["pt_main_thread", "pt_mine", "python"])
def test_names_that_a_program_may_have_given_prove_nothing(name: str) -> None:
    assert may_act(name, X86, 232, (9, 0x1000, 64, 10))


def test_a_name_that_is_the_main_thread_s_was_given_to_that() -> None:
    assert may_act("pt_gloo_runloop", X86, 232, (9, 0x1000, 64, 10), "pt_gloo_runloop")
