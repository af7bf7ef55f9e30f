"""What a worker notes of reduced values, with a real torch and real groups of gloo: the same on all ranks, or nothing at all.

One pair of processes plays all the programs, one after the other, each with a checker of its own. Rank 0 has the recorder in
Python, rank 1 that in C, if it can be built.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from worker_side import load_worker_side

from robust_run.tracer.files import reduced, ring
from robust_run.tracer.native import build
from robust_run.tracer.reduced import types

EVERY = 4
STEPS = 12

PROGRAMS = f"""
import os, sys
import msgspec
import torch, torch._dynamo, torch.distributed as dist  # DistributedDataParallel imports it, in each rank
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from small_optimizer import SGD as TEXT
from worker_side import load_worker_side
from robust_run.tracer.files import reduced, ring

exec(TEXT)
folder, native = sys.argv[1:]
torch.set_num_threads(1)
other = os.fork()  # importing torch takes longer than all else
rank = 0 if other else 1
side = load_worker_side()
ring.create(f"{{folder}}/{{rank}}.ring", rank, 2)
distributed, library = dist.distributed_c10d, sys.modules["torch._C._distributed_c10d"]
said = []
path = f"{{folder}}/{{rank}}.ring"
if rank and native:
    made = side.load("native")
    hooks = made.NativeHooks(made.NativeRing(path, said.append, made.extension(native)), distributed, library, lambda: None)
else:
    hooks = side.load("hooks").Hooks(side.load("recorder").Ring(path, said.append), distributed, library, lambda: None)
hooks.install()
dist.init_process_group("gloo", init_method=f"file://{{folder}}/meet", rank=rank, world_size=2)
plain_call, plain_wait = library.ProcessGroup.allreduce, library.Work.wait
own = torch.arange(100000.0) + rank
large = lambda: (own * 3).sin()


def checked(name, step, steps={STEPS}):
    path = f"{{folder}}/{{name}}.{{rank}}"
    reduced.create(path, {EVERY})
    end_step = side.load("reduced").install(path, hooks, torch)
    for number in range(steps):
        step(number)
        end_step()
    end_step()
    library.ProcessGroup.allreduce, library.Work.wait = plain_call, plain_wait
    hooks.reduced[:] = []
    count, values = reduced.read(path, rank, 0)
    return {{"count": count, "values": values, "state": open(path, "rb").read()[24]}}


def usual(number):
    small, tensor = torch.ones(3), large()
    dist.all_reduce(small)
    dist.all_reduce(tensor)


def waits_later(number):
    tensor = large()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    tensor += rank  # what the program makes of it is its own business


def changes_before_it_waits(number):
    tensor = large()
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    tensor.add_(rank)
    work.wait()


def others(number):
    tensor, whole = large(), torch.empty(200000)
    dist.reduce(tensor, 0)
    dist.all_gather([whole[:100000], whole[100000:]], tensor)
    dist.broadcast(tensor, 0)
    dist.scatter(torch.empty(2), [torch.ones(2), torch.ones(2)] if rank == 0 else None)


def coalesced(number):
    dist.all_reduce_coalesced([large(), large()])


def never_waits(number):
    kept.append(dist.all_reduce(large(), async_op=True))


def views(number):
    dist.all_reduce(torch.ones(400, 400).to_sparse())
    with torch.inference_mode():
        dist.all_reduce(large())


def reduced_again(number):
    tensor = large()
    one = dist.all_reduce(tensor, async_op=True)
    two = dist.all_reduce(tensor, async_op=True)
    one.wait()
    two.wait()


def other_steps(number):
    usual(number)
    if rank == 1 and number == 1:
        hooks.reduced[0].end_step()  # an optimizer of its own


def same_values(name):
    def step(number):
        tensor = torch.zeros(1000)
        if name == "zeros":
            tensor.view(torch.int32)[:] = -2147483648 if rank else 0  # as max leaves them, by the order
        else:
            tensor.view(torch.int32)[:] = 0x7FC00000 + rank  # as a sum of two leaves one of them
        checker = hooks.reduced[0]
        if checker.sampling and checker.adds_up(tensor):
            checker.note(tensor, 1, 5, 2, number)
    return step


def data_parallel():
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.Linear(40, 1)))
    optimizer = SGD(model.parameters(), lr=0.01)

    def step(number):
        with model.no_sync():
            model(torch.randn(4, 50)).sum().backward()
        model(torch.randn(4, 50) + rank).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def broken(number):
    hooks.reduced[0].hooks = None
    usual(number)


kept = []
found = {{}}
for name, step in (
    ("usual", usual), ("waits_later", waits_later), ("changes_before_it_waits", changes_before_it_waits),
    ("others", others), ("coalesced", coalesced), ("never_waits", never_waits), ("views", views),
    ("reduced_again", reduced_again), ("other_steps", other_steps), ("zeros", same_values("zeros")),
    ("nans", same_values("nans")), ("data_parallel", data_parallel()), ("broken", broken),
):
    found[name] = checked(name, step)
    dist.barrier()
assert not said, said
open(f"{{folder}}/found-{{rank}}", "wb").write(msgspec.json.encode(found))
dist.destroy_process_group()
if other:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
os._exit(0)
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory, built_in_c: build.Recorder) -> list[dict[str, Any]]:
    """What both ranks have noted in each program."""
    folder = tmp_path_factory.mktemp("reduced")
    script = folder / "programs.py"
    script.write_text(textwrap.dedent(PROGRAMS))
    argv = [sys.executable, script, folder, built_in_c.path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"found-{rank}").read_bytes()) for rank in range(2)]


def records(noted: list[dict[str, Any]], program: str) -> list[list[list[int]]]:
    """Return what each rank has noted, without the rank."""
    return [[value[1:] for value in found[program]["values"]] for found in noted]


@pytest.mark.parametrize("program", ["usual", "waits_later", "zeros", "nans", "data_parallel"])
def test_what_is_the_same_on_both_ranks_is_noted_every_so_many_steps(noted: list[dict[str, Any]], program: str) -> None:
    one, two = records(noted, program)
    assert one == two and len(one) == STEPS // EVERY


def test_the_largest_is_noted_and_by_and_by_all_of_it(noted: list[dict[str, Any]]) -> None:
    (values, _) = records(noted, "usual")
    assert {value[4] for value in values} == {100000}
    starts = {value[6] for value in values}
    assert starts <= {0, 1 << 16}
    side = load_worker_side().load("checksum")
    for windows in (2, 3, 7, 64):
        tried = {side.Sums.window(None, windows << 16, turn * 100)[0] >> 16 for turn in range(windows * 40)}
        assert tried == set(range(windows))


@pytest.mark.parametrize(
    "program", ["changes_before_it_waits", "others", "coalesced", "never_waits", "views", "reduced_again"]
)
def test_what_may_differ_is_not_noted(noted: list[dict[str, Any]], program: str) -> None:
    one, two = records(noted, program)
    if program == "reduced_again":  # of a tensor that is reduced twice, the second time alone
        assert one == two
        return
    assert not one and not two


def test_ranks_that_count_steps_in_their_own_way_never_speak_of_one_call_with_two_values(
    noted: list[dict[str, Any]],
) -> None:
    one, two = ({tuple(value[:8]): value[9] for value in values} for values in records(noted, "other_steps"))
    assert one and two and not one.keys() & two.keys()


def test_a_mistake_of_ours_ends_the_checks_and_not_the_program(noted: list[dict[str, Any]]) -> None:
    assert records(noted, "broken") == [[], []]
    assert {found["broken"]["state"] for found in noted} == {reduced.GIVEN_UP}


# --- on a GPU, of which a fake says when it is done ---------------------------------------------------------------


class Gpu:
    """As much of torch as a checksum needs that is made on a GPU and fetched later."""

    def __init__(self) -> None:
        self.capturing, self.done = False, False
        nothing = contextlib.nullcontext
        self.cuda = SimpleNamespace(
            current_device=lambda: 0, is_current_stream_capturing=lambda: self.capturing, Event=lambda: self
        )
        self.Tensor, self.strided = FakeTensor, "strided"
        self.nn = SimpleNamespace(Parameter=FakeTensor)
        self.compiler = SimpleNamespace(is_compiling=lambda: False)
        self._C = SimpleNamespace(_len_torch_dispatch_stack=lambda: 0, DisableTorchFunction=nothing)
        self.no_grad = nothing
        for name in types.DTYPES[1:]:
            setattr(self, name, name)
        self.record = lambda: None
        self.query = lambda: self.done

    def empty(self, count: int, **_: Any) -> Any:
        return FakePinned(count)


class FakePinned(list[int]):
    def __init__(self, count: int) -> None:
        super().__init__([0] * count)

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            return super().__getitem__(place)
        return SimpleNamespace(copy_=lambda total, **_: self.__setitem__(place.start, total.number))


class FakeTensor:
    layout, dtype = "strided", "float32"

    def __init__(self, number: int = 0, index: int = 0) -> None:
        self.number = number
        self.device = SimpleNamespace(type="cuda", index=index)

    def numel(self) -> int:
        return 10

    def is_contiguous(self) -> bool:
        return True

    def is_inference(self) -> bool:
        return False

    is_neg = is_inference

    def reshape(self, _: int) -> FakeTensor:
        return self


def test_what_a_gpu_adds_up_is_fetched_when_it_is_done_and_nobody_waits_for_it() -> None:
    gpu = Gpu()
    sums = load_worker_side().load("checksum").Sums(gpu)
    fetched = sums.fetch(FakeTensor(-5))
    assert fetched.look() is None
    gpu.done = True
    assert fetched.look() == (1 << 64) - 5 and fetched.look() == (1 << 64) - 5
    assert len(sums.free) == 16, "its place is free again, once"


def test_nothing_is_added_up_in_a_captured_graph_on_another_gpu_or_where_sixteen_are_on_their_way() -> None:
    gpu = Gpu()
    sums = load_worker_side().load("checksum").Sums(gpu)
    assert sums.can(FakeTensor()) and not sums.can(FakeTensor(index=1))
    gpu.capturing = True
    assert not sums.can(FakeTensor())
    gpu.capturing = False
    on_their_way = [sums.fetch(FakeTensor(number)) for number in range(16)]
    assert not sums.can(FakeTensor())
    gpu.capturing = gpu.done = True
    assert on_their_way[3].look() is None, "an event is not asked for while a graph is captured"
    gpu.capturing = False
    assert [each.look() for each in on_their_way] == list(range(16)) and sums.can(FakeTensor())


# --- one number, and the file ---------------------------------------------------------------------------------------


def test_both_sides_have_the_same_layout() -> None:
    side = load_worker_side()
    sums = side.load("checksum")
    names = [name for name in dir(reduced) if name.isupper() and hasattr(sums, name)]
    assert {"MAGIC", "VERSION", "FILE_BYTES", "RECORDS_AT_CELL", "COUNT_CELL", "GIVEN_UP"} <= set(names)
    assert {name: getattr(sums, name) for name in names} == {name: getattr(reduced, name) for name in names}
    assert sums.DTYPES == types.DTYPES


def test_records_are_read_as_they_were_written_the_newest_of_them_and_none_that_is_torn(tmp_path: Path) -> None:
    path = str(tmp_path / "0.reduced")
    reduced.create(path, 5)
    file = load_worker_side().load("checksum").ReducedFile(path)
    assert file.every == 5 and reduced.read(path, 0, 0) == (0, ()), "nobody has claimed it"
    assert file.claim()
    for number in range(100):
        file.write(7, 3, number, 1, 10, 1, 0, 10, number, (1 << 64) - 1 - number)
    count, values = reduced.read(path, 2, 0)
    assert count == 100 and [value.seq for value in values] == list(range(36, 100))
    assert values[0].checksum == (1 << 64) - 37 and {value.rank for value in values} == {2}
    assert [value.seq for value in reduced.read(path, 2, 98)[1]] == [98, 99]
    file.cells[8 + 12 * (99 % 64) + 11] = 0
    assert [value.seq for value in reduced.read(path, 2, 98)[1]] == [98]
    assert reduced.read(path, 2, 100) == (100, ())


@pytest.mark.parametrize("content", [b"", b"RBREDUC\n", b"x" * 10000, b"RBREDUC\n" + b"\xff" * 10000])
def test_whatever_lies_there_is_read_without_a_word(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0.reduced"
    path.write_bytes(content)
    assert reduced.read(str(path), 0, 3)[1] == ()
    assert reduced.read(str(tmp_path / "none"), 0, 3) == (3, ())
    assert ring.RingReader(str(path)).header() is None
