"""Whatever a program does, the recorder in C writes what the recorder in Python writes, and the program sees the same."""

from __future__ import annotations

import gc
import sys
import traceback
import tracemalloc
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_groups import FakeTorch, Tensor
from hypothesis import HealthCheck, given, settings
from tracer.native.programs import PLACES, Placed, Player, programs, recorded

from robust_run.tracer.files import ring_format


@pytest.fixture
def torch(recorder_in_c: str, tmp_path: Path) -> FakeTorch:
    return FakeTorch(tmp_path / "ring", recorder_in_c)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(programs)
def test_both_recorders_write_the_same(recorder_in_c: str, tmp_path: Path, program: list[Any]) -> None:
    both = [FakeTorch(tmp_path / "ring", native) for native in ("", recorder_in_c)]
    seen = [Player(torch).play(program) for torch in both]
    assert seen[0] == seen[1]
    in_python, in_c = map(recorded, both)
    assert in_python == in_c


def test_more_calls_than_slots_works_and_tags_are_kept_alike(recorder_in_c: str, tmp_path: Path) -> None:
    rings = []
    for native in ("", recorder_in_c):
        torch = FakeTorch(tmp_path / "ring", native)
        works = [torch.group.allreduce([Tensor(number)]) for number in range(ring_format.SLOTS + 100)]
        for work in works[:-50:7]:
            work.wait()
        turns = torch.hooks.known[id(torch.group)][1].turns
        turns.update({(10, number, 0): number for number in range(5000)})
        works += [torch.group.send([Tensor(1)], peer, 0) for peer in (1, 0, 1)]  # kept: an id would be given twice
        rings.append((recorded(torch), dict(turns), len(torch.hooks.links)))
    assert rings[0] == rings[1]


def test_more_calls_of_a_group_than_fit_32_bits_are_recorded_by_both(recorder_in_c: str, tmp_path: Path) -> None:
    """Nobody is watched any more where the recorder gives up after 50 days of a thousand calls a second."""
    for native in ("", recorder_in_c):
        torch = FakeTorch(tmp_path / "ring", native)
        works = [torch.group.allreduce([Tensor(1)])]
        torch.hooks.known[id(torch.group)][1].next_number = count((1 << 32) - 1).__next__
        works += [torch.group.allreduce([Tensor(1)]) for _ in range(3)]
        assert [op.seq for op in torch.ops] == [1, (1 << 32) - 1, 1 << 32, (1 << 32) + 1]
        assert not torch.errors


def test_calls_leave_no_references_behind(torch: FakeTorch) -> None:
    class Error(Exception): ...

    tensors, group = [Tensor(1)], torch.group
    group.returned = work = torch.Work()
    group.returned = lambda: work

    def play(times: int) -> None:
        for number in range(times):
            group.allreduce(tensors).wait()
            group.broadcast(tensors, 1).is_completed()
            group.send(tensors, 1, 0)
            group.allreduce(Tensor(2), opts=None)
            if number % 10 == 0:
                group.gather()  # torch's to refuse
                group.action = failing(Error)
                with pytest.raises(Error):
                    group.allreduce(tensors)
                group.action = None

    play(50)
    gc.collect()
    held = [tensors, group, work, torch.ring.threads, torch.hooks.known, *map(type, (tensors[0], work))]
    before = [sys.getrefcount(each) for each in held]
    tracemalloc.start()
    try:
        play(20)
        first = tracemalloc.get_traced_memory()[0]
        play(2000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - first < 20_000
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(each) for each in held] == before


def failing(error: type[Exception]) -> Any:
    def fail() -> None:
        raise error

    return fail


def test_a_traceback_has_no_frame_of_ours(torch: FakeTorch) -> None:
    torch.group.action = failing(ValueError)
    with pytest.raises(ValueError) as caught:
        torch.group.allreduce([Tensor(1)])
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_a_traceback_has_no_frame_of_ours", "allreduce", "fail"]


def test_a_wrapped_method_is_described_bound_and_copied_as_the_method_itself(torch: FakeTorch) -> None:
    import copy
    import inspect
    import weakref

    method = torch.ProcessGroup.allreduce
    assert (method.__name__, method.__qualname__.rpartition(".")[2]) == ("allreduce", "allreduce")
    assert list(inspect.signature(method).parameters) == ["self", "tensors", "opts"]
    assert copy.deepcopy(method) is method
    assert weakref.ref(method)() is method
    assert torch.group.allreduce.__self__ is torch.group

    class Own(torch.ProcessGroup):
        def allreduce(self, *args: Any) -> Any:
            return super().allreduce(*args)

    assert isinstance(Own().allreduce([Tensor(1)]), torch.Work)
    with pytest.raises(TypeError):
        method()


def test_a_tensor_that_ends_its_own_group_and_list_while_it_is_asked_crashes_nobody(torch: FakeTorch) -> None:
    class Wild(Tensor):
        def numel(self) -> int:
            tensors.clear()
            torch.hooks.known.clear()
            return 1

    tensors: list[Any] = []
    for _ in range(50):
        tensors += [Wild(1), Wild(1), Wild(1)]
        torch.group.allreduce(tensors)
        torch.group.alltoall([], [*tensors, Wild(2)])
    assert not torch.errors
    assert torch.header.ops == 100


def test_an_interrupt_while_a_tensor_is_asked_passes_and_torch_is_not_called(torch: FakeTorch) -> None:
    class Interrupted(Tensor):
        def numel(self) -> int:
            raise KeyboardInterrupt

    torch.group.action = failing(AssertionError)
    with pytest.raises(KeyboardInterrupt):
        torch.group.allreduce([Interrupted(1)])


def every_call(player: Player) -> None:
    """Make calls of every shape, from one place each."""
    group, cpu, gpu = player.torch.group, Placed(2, "torch.float32", "cpu"), Placed(3, "torch.int8", "cuda")
    group.allreduce([cpu]).wait()
    group.allreduce([gpu, cpu, [cpu]]).is_completed()
    group.allreduce((cpu,) * 20)
    group.allreduce([cpu] * 16 + [gpu] * 4)
    group.broadcast([cpu], SimpleNamespace(rootRank=1))
    group.gather([], [gpu], 0)
    group.scatter([cpu], [], 7)
    group.alltoall([], [cpu, cpu])
    group.alltoall([], [cpu, gpu])
    group.alltoall_base(cpu, gpu, [], [])
    group.alltoall_base(cpu, cpu, [], [2])
    group.send([cpu], 1, 5)
    group.send([cpu], 1, 6)
    group.send([gpu], 1, 5)
    group.recv([cpu], 0, 1 << 31)
    group.recv_anysource([cpu], 5)
    group.barrier()
    player.gather()
    group.allreduce([cpu])
    group.broadcast([cpu], 1)
    player.end_of_gathering().wait()
    train, package, other, torch = PLACES
    for path in ([train], [package], [torch], [torch, train], [torch, package] * 3, [package, torch, train] * 3):
        player.through([PLACES.index(place) for place in path[::-1]], ("call", "allreduce", 0, ([cpu],)))
    for depth in (9, 10, 11, 12):
        for outer in PLACES:
            outer(*[torch] * depth, group.allreduce, [cpu])
            outer(package, *[torch] * depth, group.allreduce, [cpu])
            outer(package, other, *[torch] * depth, group.allreduce, [cpu])
    player.thread.submit(group.allreduce, [cpu]).result(60)
    player.nothing_returned()
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            player.fail_in_call(error)
    group.allreduce([cpu]).wait(timeout=timedelta(seconds=3))


def test_python_is_asked_at_the_first_call_from_a_place_and_never_again(recorder_in_c: str, tmp_path: Path) -> None:
    rings = []
    for native in ("", recorder_in_c):
        torch, asked = FakeTorch(tmp_path / "ring", native), []
        site = torch.ring.site
        torch.ring.site = lambda frame, asked=asked, site=site: (asked.append(frame.f_lineno), site(frame))[1]
        player, counts = Player(torch), []
        for _ in range(4):
            every_call(player)
            counts.append(len(asked))
        player.thread.shutdown()
        rings.append(recorded(torch))
    assert counts == [counts[0]] * 4
    assert rings[0] == rings[1]
