"""What ranks do in tests of several: a process that imports torch once, and forks the ranks of each scenario.

It reads lines of JSON (scenario, ranks, folder) and answers each with one line: what every rank answered, or null for a rank that
said nothing within the time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it: once, and not in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from robust_run.ckpt_io.dcp import RobustReader, async_save, load, save
from robust_run.ckpt_io.reading import Checkpoint, Wanted, open_checkpoint

UNIT_BYTES = 1 << 20
LIMIT_S = 120


class Net(nn.Module):
    """Sizes that two, three and four ranks divide unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(301, 401)
        self.outer = nn.Linear(401, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(x)))


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model sharded over all ranks, after some steps."""
    torch.manual_seed(5)
    model = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 301), step + 1.0)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def digest(state: Any) -> dict[str, float]:
    """Sums of all tensors, whole, whoever has their shards; and all other values."""
    found: dict[str, Any] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(inner, f"{path}/{key}")
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                visit(inner, f"{path}/{index}")
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            weights = torch.arange(1, whole.numel() + 1, dtype=torch.float64)
            found[path] = float((whole.detach().double().flatten() * weights).sum())
        else:
            found[path] = str(value)

    visit(state, "")
    return found


def fsdp_save(rank: int, folder: Path) -> Any:
    model, optimizer = trained(3)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 3}
    save(state, folder / "step-3", also=[str(folder / "more")], unit_bytes=UNIT_BYTES)
    return digest(state)


def fsdp_load(rank: int, folder: Path) -> Any:
    model, optimizer = trained(1)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    load(state, folder / "step-3")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    weights, moments = get_state_dict(model, optimizer)
    return digest({"model": weights, "optimizer": moments, "step": state["step"]})


def fsdp_load_and_save_again(rank: int, folder: Path) -> Any:
    model, optimizer = trained(1)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    load(state, folder / "step-3")
    save(state, folder / "step-3")
    return digest(state)


GRID = torch.arange(301 * 517, dtype=torch.float32).reshape(301, 517)
CUBE = torch.arange(7 * 64 * 96, dtype=torch.float64).reshape(7, 64, 96)


def placed(placement: Any, *, blank: bool) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    source = (torch.zeros_like(GRID), torch.zeros_like(CUBE)) if blank else (GRID, CUBE)
    return {
        name: distribute_tensor(tensor, mesh, [placement])
        for name, tensor in zip(("grid", "cube"), source, strict=True)
    }


def columns_save(rank: int, folder: Path) -> Any:
    save(placed(Shard(1), blank=False), folder / "grid", unit_bytes=UNIT_BYTES)


def load_as(placement: Any) -> Callable[[int, Path], Any]:
    def scenario(rank: int, folder: Path) -> Any:
        state = placed(placement, blank=True)
        load(state, folder / "grid")
        return [
            bool(torch.equal(state["grid"].full_tensor(), GRID)),
            bool(torch.equal(state["cube"].full_tensor(), CUBE)),
        ]

    return scenario


def replicated(blank: bool = False) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    state: dict[str, Any] = {f"t{i}": torch.randn(300_000, generator=generator) for i in range(6)}
    if blank:
        state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        state["t5"] = torch.zeros(300_000, dtype=torch.float64)
    return {**state, "step": 0 if blank else 9}


def replicated_save(rank: int, folder: Path) -> Any:
    save(replicated(), folder / "same", unit_bytes=UNIT_BYTES)


class Counting:
    """A checkpoint that notes what is read of it."""

    def __init__(self, inner: Checkpoint, read: list[tuple[int, int, int]]) -> None:
        self._inner = inner
        self._read = read
        self.manifest, self.url = inner.manifest, inner.url
        self.close = inner.close

    def read(self, wanted: Sequence[Wanted], progress: Any = None) -> None:
        self._read += [(want.file, want.offset_bytes, len(want.buffer)) for want in wanted]
        self._inner.read(wanted, progress)


def broadcast_load(rank: int, folder: Path) -> Any:
    read: list[tuple[int, int, int]] = []

    def opener(*args: Any, **options: Any) -> Any:
        return Counting(open_checkpoint(*args, **options), read)

    state = replicated(blank=True)
    reader = RobustReader(folder / "same", broadcast_group=dist.group.WORLD, opener=opener)
    dcp.load(state, storage_reader=reader)
    expected = replicated()
    same = all(torch.equal(state[name].float(), expected[name]) for name in expected if name != "step")
    return {"same": same and state["step"] == 9, "read": read}


def broadcast_two_groups(rank: int, folder: Path) -> Any:
    """Two data-parallel groups of two; each pair wants other tensors, and one of its own besides."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    blank = replicated(blank=True)
    names = [["t0", "t1"], ["t2", "t3"]][rank // 2] + [f"t{rank}", "t4"]
    state = {name: blank[name] for name in dict.fromkeys(names)}
    load(
        state,
        folder / "same",
        broadcast_group=groups[rank // 2],
        planner=dcp.DefaultLoadPlanner(allow_partial_load=True),
    )
    expected = replicated()
    return all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def broadcast_plain_load(rank: int, folder: Path) -> Any:
    load(replicated(blank=True), folder / "same", broadcast_group=dist.group.WORLD)


def broadcast_trouble(rank: int, folder: Path) -> Any:
    """Rank 1 has a tensor that nothing can be loaded into."""
    state = replicated(blank=True)
    planner: Any = dcp.DefaultLoadPlanner()
    if rank == 1:
        planner.transform_tensor = lambda item, tensor: tensor[:7]
    load(state, folder / "same", broadcast_group=dist.group.WORLD, planner=planner)


def save_with_one_bad_rank(rank: int, folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = placed(Shard(0), blank=False)
    local = torch.ones(4) if rank == 0 else torch.ones(4, device="meta")
    state["bad"] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    save(state, folder / "grid")


def save_and_die(rank: int, folder: Path) -> Any:
    """Rank 1 is killed when it has written some of its file."""

    def die(_: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    save({"other": torch.ones(3), **placed(Shard(0), blank=True)}, folder / "grid", progress=die)


def load_nothing(rank: int, folder: Path) -> Any:
    load({"a": torch.zeros(1)}, folder / "nothing")


def load_where_one_rank_sees_nothing(rank: int, folder: Path) -> Any:
    load(replicated(blank=True), folder / ("same" if rank == 0 else "nothing"))


def seen_by(rank: int, folder: Path) -> Path:
    """The checkpoint as the nodes of a job may see it while caches of their file system are old: rank 0 a newer one."""
    return folder / ("new" if rank == 0 else "old") / "last"


def save_twice(rank: int, folder: Path) -> Any:
    for step, name in ((2, "old"), (3, "new")):
        save({**replicated(), "step": step}, folder / name / "last", step=step)


def load_as_seen(rank: int, folder: Path) -> Any:
    state = replicated(blank=True)
    load(state, seen_by(rank, folder))
    return state["step"]


def load_as_seen_by_torch(rank: int, folder: Path) -> Any:
    """Without our `load`: any launcher, any program."""
    state = replicated(blank=True)
    try:
        dcp.load(state, storage_reader=RobustReader(seen_by(rank, folder)))
    except dcp.api.CheckpointException as collected:
        (error,) = collected.failures.values()
        raise error[0] from collected
    return state["step"]


def own_save(rank: int, folder: Path) -> Any:
    """Each rank saves all it has, as the only one of its node: laid out differently, and not of the same values."""
    groups = [dist.new_group([each]) for each in range(dist.get_world_size())]
    for step in (2, 3):
        state = {**replicated(), "who": rank, **({"more": GRID} if rank else {})}
        save(state, folder / f"node-{rank}" / f"step-{step}", step=step, process_group=groups[rank])


def load_own(told: Callable[[int], dict[str, str]], name: Callable[[int], str], shared: bool = False) -> Any:
    def scenario(rank: int, folder: Path) -> Any:
        path = folder / f"node-{rank}" / name(rank)
        os.environ.update({"ROBUST_RESUME": str(path), "GROUP_RANK": str(rank)})
        os.environ.update(told(rank))
        state = {**replicated(blank=True), "who": -1}
        load(state, path, broadcast_group=dist.group.WORLD if shared else None)
        same = all(torch.equal(state[f"t{i}"].double(), replicated()[f"t{i}"].double()) for i in range(6))
        return [state["who"], same]

    return scenario


OWN = {"ROBUST_RESUME_OWN": "1"}


def load_alone_among_others(rank: int, folder: Path) -> Any:
    """Each rank reads what it wants: `no_dist` says that nobody asks the others."""
    state = replicated(blank=True)
    dcp.load(state, storage_reader=RobustReader(seen_by(rank, folder)), no_dist=True)
    return state["step"]


HELD: list[dist.TCPStore] = []


def meet_at_a_port_that_is_held(rank: int) -> None:
    """Give the processes that save a store: a port that torch picks for them could be another's before they are there."""
    os.environ["DCP_USE_PREFIX_STORE"] = "1"
    if rank == 0:
        HELD.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(HELD[0].port))


def in_background(in_process: bool) -> Callable[[int, Path], Any]:
    def scenario(rank: int, folder: Path) -> Any:
        if in_process:
            meet_at_a_port_that_is_held(rank)
        state = placed(Shard(0), blank=False)
        saving = async_save(state, folder / "grid", in_process=in_process)
        saving.result(120)
        loaded = placed(Shard(0), blank=True)
        load(loaded, folder / "grid")
        try:
            async_save(state, "/proc/nothing/can/be/written", in_process=in_process).result(120)
        except Exception as error:
            return [bool(torch.equal(loaded["grid"].full_tensor(), GRID)), type(error).__name__, str(error)]
        return "saved where nothing can be"

    return scenario


def save_as_training_goes_on(rank: int, folder: Path) -> Any:
    """Ranks talk to each other over the same group meanwhile, each at a pace of its own."""
    state, saving, sums = placed(Shard(0), blank=False), [], []
    for step in range(1, 5):
        state["grid"].to_local().fill_(step)
        saving.append(async_save(state, folder / f"step-{step}"))
        for _ in range(50 * (rank + 1)):
            torch.randn(64, 64).square().sum()
        total = torch.tensor([float(step + rank)])
        dist.all_reduce(total)
        sums.append(total.item())
    state["grid"].to_local().fill_(-1)
    for each in saving:
        each.result(120)
    found = []
    for step in range(1, 5):
        load(state, folder / f"step-{step}")
        found.append(bool(state["grid"].to_local().eq(step).all()))
    return [sums, found]


class Waiting(dcp.DefaultSavePlanner):
    """A planner that says when its save is about to ask the others, and waits for `go` before that."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__()
        self.go, self.is_here = go, threading.Event()

    def create_local_plan(self) -> Any:
        self.go.wait(LIMIT_S)
        self.is_here.set()
        return super().create_local_plan()


def save_and_train_in_another_order(rank: int, folder: Path) -> Any:
    """Rank 0 asks for a sum and saves then, rank 1 saves and asks then."""
    state, go = placed(Shard(0), blank=False), threading.Event()
    if rank == 1:
        go.set()
    planner = Waiting(go)
    saving = async_save(state, folder / "grid", planner=planner)
    total = torch.tensor([rank + 1.0])
    if rank == 1:
        planner.is_here.wait(LIMIT_S)
        time.sleep(0.2)  # so that the save has asked; if it has not, the order is that of rank 0, and right in any case
    asked = dist.all_reduce(total, async_op=True)
    go.set()
    asked.wait()
    saving.result(LIMIT_S)
    loaded = placed(Shard(0), blank=True)
    load(loaded, folder / "grid")
    return [total.item(), bool(torch.equal(loaded["grid"].full_tensor(), GRID))]


SCENARIOS: dict[str, Callable[[int, Path], Any]] = {
    "fsdp_save": fsdp_save,
    "fsdp_load": fsdp_load,
    "fsdp_load_and_save_again": fsdp_load_and_save_again,
    "columns_save": columns_save,
    "load_as_rows": load_as(Shard(0)),
    "load_as_columns": load_as(Shard(1)),
    "load_whole": load_as(Replicate()),
    "replicated_save": replicated_save,
    "broadcast_load": broadcast_load,
    "broadcast_two_groups": broadcast_two_groups,
    "broadcast_plain_load": broadcast_plain_load,
    "broadcast_trouble": broadcast_trouble,
    "save_with_one_bad_rank": save_with_one_bad_rank,
    "save_and_die": save_and_die,
    "load_nothing": load_nothing,
    "load_where_one_rank_sees_nothing": load_where_one_rank_sees_nothing,
    "save_twice": save_twice,
    "load_as_seen": load_as_seen,
    "load_as_seen_by_torch": load_as_seen_by_torch,
    "own_save": own_save,
    "load_own": load_own(lambda _: OWN, lambda _: "step-3"),
    "load_own_untold": load_own(lambda _: {}, lambda _: "step-3"),
    "load_own_told_one": load_own(lambda rank: OWN if rank else {}, lambda _: "step-3"),
    "load_own_of_other_steps": load_own(lambda _: OWN, lambda rank: f"step-{2 + rank}"),
    "load_own_elsewhere": load_own(lambda _: {**OWN, "ROBUST_RESUME": "/ckpt/step-3"}, lambda _: "step-3"),
    "load_own_of_one_node": load_own(lambda _: {**OWN, "GROUP_RANK": "0"}, lambda _: "step-3"),
    "load_own_shared": load_own(lambda _: OWN, lambda _: "step-3", shared=True),
    "load_alone_among_others": load_alone_among_others,
    "save_in_a_thread": in_background(in_process=False),
    "save_as_training_goes_on": save_as_training_goes_on,
    "save_and_train_in_another_order": save_and_train_in_another_order,
    "save_in_a_process": in_background(in_process=True),
}


def be_rank(scenario: str, rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """`scenario`: its name, and, after an @, the backends to be used."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-{scenario}-{ranks}"
    scenario, _, backends = scenario.partition("@")
    dist.init_process_group(backends or "gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        answer = {"value": SCENARIOS[scenario](rank, folder)}
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": type(error).__name__, "text": str(error)}
    with contextlib.suppress(RuntimeError):  # a rank may be gone
        dist.barrier()
        dist.destroy_process_group()
    return answer


def fork_rank(scenario: str, rank: int, ranks: int, folder: Path) -> tuple[int, int]:
    """Return the pid of a rank, and where its answer comes out."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        try:
            os.write(into, json.dumps(be_rank(scenario, rank, ranks, folder)).encode())
        finally:
            os._exit(0)
    os.close(into)
    return pid, out


def hear(out: int, end_at_s: float) -> Any:
    """What a rank answers."""
    data = b""
    while select.select([out], [], [], max(0.0, end_at_s - time.monotonic()))[0]:
        more = os.read(out, 1 << 20)
        if not more:
            return json.loads(data) if data else None
        data += more
    return None


def main() -> None:
    gc.freeze()  # or each rank copies what it looks through
    answered = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where gloo of some releases of torch has something to say
    for line in sys.stdin:
        scenario, ranks, folder = json.loads(line)
        forked = [fork_rank(scenario, rank, ranks, Path(folder)) for rank in range(ranks)]
        end_at_s = time.monotonic() + LIMIT_S
        answers = [hear(out, end_at_s) for _, out in forked]
        for pid, out in forked:
            os.close(out)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(json.dumps(answers), file=answered, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
