"""Random programs that communicate, played on a torch made of a few lines; and what a recorder made of one."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import CodeType, SimpleNamespace
from typing import Any

from fake_groups import FakeTorch, Tensor
from hypothesis import strategies as st

from robust_run.tracer.files import ring_format


class Placed(Tensor):
    """A tensor that is somewhere."""

    def __init__(self, numel: int, dtype: str, device: str) -> None:
        super().__init__(numel, dtype)
        self.device = SimpleNamespace(type=device)


class Odd:
    """No tensor, or one that fails when it is asked."""

    def numel(self) -> int:
        raise RuntimeError("asked for its size")


class Huge(Placed):
    def numel(self) -> int:
        return 1 << 70


def place(filename: str) -> Any:
    """Return a function that calls what it is given, as if it stood in this file."""
    found: dict[str, Any] = {}
    exec(compile("def through(call, *args):\n    return call(*args)\n", filename, "exec"), found)
    code: CodeType = found["through"].__code__
    assert code.co_filename == filename
    return found["through"]


PLACES = [
    place(f"/x/{name}")
    for name in ("train.py", "site-packages/frame/work.py", "site-packages/loop.py", "torch/distributed/c10d.py")
]

tensors = st.one_of(
    st.builds(
        Placed,
        st.integers(0, 1000),
        st.sampled_from(["torch.float32", "torch.bfloat16", "torch.int64", "torch.unheard_of"]),
        st.sampled_from(["cpu", "cuda"]),
    ),
    st.sampled_from([Odd(), Huge(1, "torch.float32", "cpu"), "none"]),
)
good = st.builds(Placed, st.integers(0, 9), st.just("torch.float32"), st.just("cpu"))
lists = st.one_of(
    st.lists(good, min_size=1, max_size=2),
    st.lists(tensors, max_size=4),
    st.lists(st.lists(good, max_size=2), max_size=2),
    good.map(lambda tensor: [tensor] * 20),
    good.map(lambda tensor: (tensor,)),
    good.map(lambda tensor: [(tensor,)]),
    tensors,
)
roots = st.one_of(
    st.integers(-2, 3), st.integers(-2, 3).map(lambda root: SimpleNamespace(rootRank=root)), st.just("root")
)
tags = st.one_of(st.integers(-1, 3), st.sampled_from([1 << 31, 1 << 70, "tag", True]))
arguments = {
    "allreduce": st.tuples(lists),
    "broadcast": st.tuples(lists, roots),
    "gather": st.tuples(lists, lists, roots),
    "scatter": st.tuples(lists, lists, roots),
    "alltoall": st.tuples(lists, lists),
    "alltoall_base": st.tuples(lists, lists, st.lists(st.just(1), max_size=1), st.lists(st.just(1), max_size=1)),
    "send": st.tuples(lists, st.integers(-1, 2), tags),
    "recv": st.tuples(lists, st.integers(-1, 2), tags),
    "recv_anysource": st.tuples(lists, tags),
    "barrier": st.tuples(),
}
usual = st.lists(good, min_size=1, max_size=2)
few = st.integers(0, 3)
usual_arguments = {
    "allreduce": st.tuples(usual),
    "broadcast": st.tuples(usual, few),
    "gather": st.tuples(st.just([]), usual, few),
    "scatter": st.tuples(usual, st.just([]), few.map(lambda root: SimpleNamespace(rootRank=root))),
    "alltoall": st.tuples(usual, usual),
    "alltoall_base": st.tuples(good, good, st.just([]), st.lists(st.just(1), max_size=1)),
    "send": st.tuples(usual, few, few),
    "recv": st.tuples(usual, few, few),
    "recv_anysource": st.tuples(usual, few),
    "barrier": st.tuples(),
}
groups = st.sampled_from([0, 0, 0, 1, 2])
calls = st.one_of(
    [
        st.tuples(st.just("call"), st.just(name), groups, st.one_of(each, each, odd, odd.map(lambda got: got[:-1])))
        for (name, each), odd in zip(usual_arguments.items(), arguments.values(), strict=True)
    ]
)
simple = st.one_of(
    calls,
    calls,
    st.tuples(st.just("wait"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.integers(0, 30)),
    st.tuples(st.just("poll"), st.integers(0, 30)),
    st.tuples(st.just("wait for so long"), st.integers(0, 30), st.sampled_from([timedelta(0), timedelta(seconds=9)])),
    st.tuples(st.just("fail in wait"), st.integers(0, 30), st.sampled_from([ValueError, KeyboardInterrupt])),
    st.tuples(st.just("fail in call"), st.sampled_from([ValueError, KeyboardInterrupt])),
    st.tuples(
        st.sampled_from(["nothing returned", "end of step", "gather", "end of gathering", "named", "forget codes"])
    ),
    st.tuples(st.sampled_from(["init_process_group", "new_group", "destroy_process_group", "give up"])),
)
wrapped = st.tuples(st.just("through"), st.lists(st.integers(0, 3), max_size=14), calls)
elsewhere = st.tuples(st.just("elsewhere"), simple)
inside = st.tuples(st.just("inside a wait"), st.integers(0, 30), st.lists(simple, max_size=3))
programs = st.lists(st.one_of(simple, simple, simple, wrapped, wrapped, elsewhere, inside), max_size=30)


class Player:
    """Plays a program; keeps what each step came to."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch = torch
        torch.distributed.get_backend_config = lambda group: "cpu:gloo" if group is torch.group else "cuda:nccl"
        self.groups = [torch.group, torch.ProcessGroup(), torch.ProcessGroup()]
        self.groups[1].group_name = "other"
        torch.distributed._world.pg_group_ranks[self.groups[1]] = {5: 0, 3: 1}  # the third is not registered
        self.works: list[Any] = []
        self.outcomes: list[str] = []
        self.thread = ThreadPoolExecutor(1)

    def play(self, program: list[Any]) -> list[str]:
        gc.collect()
        for step in program:
            self.step(step)
        self.thread.shutdown()
        return self.outcomes

    def step(self, step: Any) -> None:
        kind, *rest = step
        try:
            outcome = repr(type(getattr(self, kind.replace(" ", "_"))(*rest)))
        except (Exception, KeyboardInterrupt) as error:
            outcome = repr(error)
        self.outcomes.append(outcome)

    def keep(self, work: Any) -> Any:
        self.works.append(work)
        return work

    def work(self, number: int) -> Any:
        return self.works[number % len(self.works)] if self.works else self.keep(self.torch.Work())

    def call(self, name: str, group: int, args: tuple[Any, ...]) -> Any:
        return self.keep(getattr(self.groups[group], name)(*args))

    def named(self) -> Any:
        return self.keep(self.torch.group.allreduce(tensors=[Placed(1, "torch.int8", "cpu")]))

    def wait(self, number: int) -> Any:
        return self.work(number).wait()

    def poll(self, number: int) -> Any:
        return self.work(number).is_completed()

    def wait_for_so_long(self, number: int, timeout: timedelta) -> Any:
        return self.work(number).wait(timeout) if number % 2 else self.work(number).wait(timeout=timeout)

    def fail_in_wait(self, number: int, error: type[BaseException]) -> Any:
        return self.acting(self.work(number), raising(error), "wait")

    def fail_in_call(self, error: type[BaseException]) -> Any:
        return self.acting(self.torch.group, raising(error), "allreduce", [Placed(2, "torch.float32", "cpu")])

    def acting(self, on: Any, action: Any, name: str, *args: Any) -> Any:
        on.action = action
        try:
            return getattr(on, name)(*args)
        finally:
            on.action = None

    def nothing_returned(self) -> Any:
        self.torch.ProcessGroup.returned = None
        try:
            return self.torch.group.allreduce([Placed(3, "torch.float32", "cpu")])
        finally:
            self.torch.ProcessGroup.returned = self.torch.Work

    def end_of_step(self) -> Any:
        return self.torch.ring.mark_step()

    def gather(self) -> Any:
        return self.torch.group._start_coalescing("cpu")

    def end_of_gathering(self) -> Any:
        return self.keep(self.torch.group._end_coalescing("cpu"))

    def init_process_group(self) -> Any:
        return self.torch.distributed.init_process_group()

    def new_group(self) -> Any:
        return self.torch.distributed.new_group([0, 1])

    def destroy_process_group(self) -> Any:
        return self.torch.distributed.destroy_process_group()

    def give_up(self) -> Any:
        if len(self.outcomes) % 5 == 0:
            self.torch.ring.stop(RuntimeError("enough"))

    def forget_codes(self) -> Any:
        self.torch.ring.table.kinds.update(dict.fromkeys(range(10_000), (0, None)))

    def through(self, places: list[int], step: tuple[str, str, int, tuple[Any, ...]]) -> Any:
        """Call with functions of these places in between."""
        _, name, group, args = step
        first, *others = *(PLACES[number] for number in places), getattr(self.groups[group], name)
        return self.keep(first(*others, *args))

    def elsewhere(self, step: Any) -> Any:
        return self.thread.submit(self.step, step).result(60)

    def inside_a_wait(self, number: int, steps: list[Any]) -> Any:
        work = self.work(number)

        def act() -> None:
            work.action = None  # what waits for itself waits for ever
            for step in steps:
                self.step(step)

        return self.acting(work, act, "wait")


def raising(error: type[BaseException]) -> Any:
    def act() -> None:
        raise error("the program's own")

    return act


TIMES = (ring_format.LAST_EVENT_CELL, ring_format.BLOCKED_CELL, ring_format.WAITING_SINCE_CELL)


def recorded(torch: FakeTorch) -> dict[str, Any]:
    """Return all that lies in the ring, of times only whether there is one."""
    cells, octets = torch.ring.cells, bytes(torch.ring.octets)
    slots = []
    for at in range(ring_format.SLOTS_AT, ring_format.MARKS_AT, ring_format.SLOT_BYTES):
        slot = octets[at : at + ring_format.SLOT_BYTES]
        if any(slot):
            slots.append((*(slot[i : i + 8] != bytes(8) for i in (0, 8, 16)), slot[24:]))
    header = [cells[i] if i not in TIMES else cells[i] != 0 for i in range(ring_format.HEADER_CELLS)]
    table = octets[ring_format.TABLE_AT : ring_format.TABLE_AT + cells[ring_format.TABLE_BYTES_CELL]]
    errors = [repr(error) for error in torch.errors]
    return {"header": header, "slots": slots, "table": table.decode().splitlines(), "errors": errors}
