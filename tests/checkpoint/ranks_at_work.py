"""What ranks do in tests of `checkpoint`: one process imports torch, and forks the ranks of each scenario.

    python ranks_at_work.py FOLDER < lines of JSON: scenario, ranks, environment (`1:NAME`: of rank 1 alone)

Each line is answered with one: what each rank answered.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_frameworks
import torch
import torch._dynamo  # optimizers import it: once, and not in each rank
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from robust_run import checkpoint
from robust_run.checkpoint import dcp_reading, dcp_writing, loading, memory, spreading, storage
from robust_run.ckpt_io.ahead import taking
from robust_run.ckpt_io.dcp import background, helpers, reader, writer
from robust_run.ckpt_io.dcp import whole as whole_files
from robust_run.ckpt_io.memory import client, read_ahead
from robust_run.store import local, local_writing, opening

ONCE = (
    *(dcp_reading, dcp_writing, loading, memory, spreading, storage, taking, client, read_ahead),
    *(background, helpers, reader, whole_files, writer, local, local_writing, opening),
)
"""What ranks import as they save and load: once, and not in each of them."""
with suppress(ImportError):  # torch 2.6 has none
    importlib.import_module("torch.utils.serialization")
LIMIT_S = 300


def whole(value: Any) -> Any:
    """A state whose tensors are whole, whoever has their shares; bit for bit, as text."""
    if isinstance(value, torch.Tensor):
        tensor = value.full_tensor() if isinstance(value, DTensor) else value
        return tensor.detach().double().flatten().tolist()
    if isinstance(value, dict):
        return {str(key): whole(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(each) for each in value]
    return whole(value.state_dict()) if hasattr(value, "state_dict") else repr(value)


def made(is_sharded: bool) -> dict[str, Any]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3))
    if is_sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(5 + (dist.get_rank() if dist.is_initialized() else 0))  # each rank draws its own data
    return {"model": model, "optimizer": optimizer, "drawn": []}


def train(state: dict[str, Any], steps: int, is_sharded: bool) -> None:
    for _ in range(steps):
        drawn = torch.randn(2, 7)
        state["drawn"].append(drawn.sum().item())
        state["optimizer"].zero_grad()
        state["model"](drawn).square().sum().backward()
        if not is_sharded and dist.is_initialized():
            for parameter in state["model"].parameters():
                dist.all_reduce(parameter.grad)
        state["optimizer"].step()


def straight(is_sharded: bool) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        train(state, 6, is_sharded)
        return whole(state)

    return scenario


def first_half(is_sharded: bool) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        for step in range(1, 4):
            train(state, 1, is_sharded)
            checkpoint.save(state, step=step)

    return scenario


def second_half(is_sharded: bool) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        state["drawn"] = ["before"]
        step = checkpoint.load(state)
        assert step == 3, step
        train(state, 6 - step, is_sharded)
        return whole(state)

    return scenario


def load_alone(rank: int) -> Any:
    """One rank, no group, nothing sharded."""
    state = made(is_sharded=False)
    return [checkpoint.load(state), whole(state)]


def look_at_sharded(rank: int) -> Any:
    state = made(is_sharded=True)
    return [checkpoint.load(state), whole(state)]


def go_on_sharded(rank: int) -> Any:
    """Go on for two steps from where another number of ranks was; each draws the same."""
    state = made(is_sharded=True)
    begun = checkpoint.load(state)
    torch.manual_seed(7)
    for step in (4, 5):
        train(state, 1, is_sharded=True)
        checkpoint.save(state, step=step)
    return [begun, whole(state)]


def save_own(rank: int) -> Any:
    """A tensor that is another one on each rank, as those of stages of a pipeline, beside one that is not."""
    checkpoint.save({"stage": torch.full((3,), rank), "same": torch.ones(2), "rank": rank}, step=1)


def load_own(rank: int) -> Any:
    state = {"stage": torch.zeros(3, dtype=torch.int64), "same": torch.zeros(2), "rank": -1}
    return [checkpoint.load(state), whole(state)]


def memory_fails_as_the_warning_comes(rank: int) -> Any:
    """On rank 1, at step 2."""
    from robust_run.ckpt_io.errors import MemoryUnavailable
    from robust_run.ckpt_io.memory.client import MemoryClient

    begin = MemoryClient.begin

    def fails(self: MemoryClient, step: int, *more: Any) -> Any:
        if rank == 1 and step >= 2:
            raise MemoryUnavailable("the memory keeper is gone")
        return begin(self, step, *more)

    MemoryClient.begin = fails  # type: ignore[method-assign]
    for step in range(1, 5):
        if step == 2 and rank == 0:
            Path(os.environ["ROBUST_WARNING_FILE"]).touch()
        checkpoint.save({"weight": torch.full((3,), float(step))}, step=step)


def save_twice(rank: int) -> None:
    """The last of them to storage at once."""
    state = {"weight": torch.ones(3)}
    checkpoint.save(state, step=1)
    checkpoint.save(state, step=2, every=1)


def save_ten(rank: int) -> None:
    """Goes on from what there is, and calls a save at each of ten more steps."""
    state = {"weight": torch.zeros(3), "steps": []}
    begin = checkpoint.load(state) or 0
    for step in range(begin + 1, begin + 11):
        state["steps"].append(step)
        checkpoint.save(state, step=step)


def save_ten_without_load(rank: int) -> None:
    for step in range(1, 11):
        checkpoint.save({"weight": torch.zeros(3)}, step=step)


def go_on(rank: int) -> Any:
    """Save step after step until a file says that it is enough; how many that were. Nothing of it may raise."""
    state = {"weight": torch.zeros(1 << 20), "step": 0}
    begin = checkpoint.load(state) or 0
    assert state["step"] == begin and bool((state["weight"] == begin).all()), (state["step"], begin)
    enough = torch.zeros(1)
    while not enough:
        state["step"] += 1
        state["weight"] += 1
        checkpoint.save(state, step=state["step"])
        if rank == 0:
            Path(os.environ["STEPS_FILE"]).write_text(str(state["step"]))
            enough[0] = int(os.path.exists(os.environ["ENOUGH_FILE"]))
        if dist.is_initialized():
            dist.broadcast(enough, 0)
        time.sleep(0.01)
    return [begin, state["step"]]


def much(rank: int) -> dict[str, Any]:
    """48 MiB, a third of which is the rank's own."""
    same = torch.arange(4 << 20, dtype=torch.float64)
    return {"same": same, "tied": same.view(2, -1), "own": torch.full((4 << 20,), float(rank)), "few": torch.ones(())}


def save_much(rank: int) -> None:
    checkpoint.save(much(rank), step=1)


def load_much(rank: int) -> bool:
    state = {name: torch.zeros_like(tensor) for name, tensor in much(rank).items()}
    assert checkpoint.load(state) == 1
    return all(torch.equal(state[name], tensor) for name, tensor in much(rank).items())


def of_torch(state: dict[str, Any]) -> dict[str, Any]:
    """As programs that call torch.distributed.checkpoint have it: keys are names, whatever the ranks are."""
    model, optimizer = get_state_dict(state["model"], state["optimizer"])
    return {"model": model, "optimizer": optimizer, "drawn": state["drawn"]}


def dcp_first_half(is_sharded: bool, how: str) -> Callable[[int], Any]:
    """`how`: async, sync, or both in turn with `checkpoint.save`."""

    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        group = dist.new_group(backend="gloo")
        for step in range(1, 4):
            train(state, 1, is_sharded)
            writer = checkpoint.MemoryWriter(step=step)
            if how == "sync":
                dcp.save(of_torch(state), storage_writer=writer)
            elif how == "mixed" and step == 2:
                checkpoint.save(of_torch(state), step=step)
            else:
                dcp.async_save(of_torch(state), storage_writer=writer, process_group=group).result(LIMIT_S)

    return scenario


def dcp_loaded(state: dict[str, Any]) -> int | None:
    reader = checkpoint.MemoryReader()
    if reader.step is not None:
        found = of_torch(state)
        dcp.load(found, storage_reader=reader)
        set_state_dict(
            state["model"],
            state["optimizer"],
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        state["drawn"] = found["drawn"]
    return reader.step


def dcp_second_half(is_sharded: bool) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        step = dcp_loaded(state)
        assert step == 3, step
        train(state, 6 - step, is_sharded)
        return whole(state)

    return scenario


def dcp_look(is_sharded: bool) -> Callable[[int], Any]:
    def scenario(rank: int) -> Any:
        state = made(is_sharded)
        return [dcp_loaded(state), whole(state["model"]), whole(state["optimizer"])]

    return scenario


def dcp_alone_among_others(rank: int) -> Any:
    dcp.async_save({"weight": torch.ones(3)}, storage_writer=checkpoint.MemoryWriter(step=1), no_dist=True).result()


def save_sharded_tensor(rank: int) -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
    checkpoint.save({"weight": sharded_tensor.ones(spec, 4, 4)}, step=1)


def dcp_save_where_nothing_can_be(rank: int) -> Any:
    group = dist.new_group(backend="gloo")
    said = []
    for step, folder in ((1, "/proc/nothing/can/be"), (2, None)):
        writer = checkpoint.MemoryWriter(step=step, folder=folder, every=1)
        try:
            dcp.async_save({"weight": torch.ones(3)}, storage_writer=writer, process_group=group).result(LIMIT_S)
            said.append("")
        except CheckpointException as error:
            said.append(str(error))
    return said


SCENARIOS: dict[str, Callable[[int], Any]] = {
    "straight": straight(is_sharded=False),
    "first_half": first_half(is_sharded=False),
    "second_half": second_half(is_sharded=False),
    "straight_sharded": straight(is_sharded=True),
    "first_half_sharded": first_half(is_sharded=True),
    "second_half_sharded": second_half(is_sharded=True),
    "look_at_sharded": look_at_sharded,
    "go_on_sharded": go_on_sharded,
    "load_alone": load_alone,
    "save_own": save_own,
    "load_own": load_own,
    "save_twice": save_twice,
    "save_ten": save_ten,
    "go_on": go_on,
    "save_ten_without_load": save_ten_without_load,
    "trainer_ten": fake_frameworks.trainer_ten,
    "lightning_ten": fake_frameworks.lightning_ten,
    "save_much": save_much,
    "load_much": load_much,
    "dcp_first_half": dcp_first_half(is_sharded=False, how="async"),
    "dcp_first_half_sharded": dcp_first_half(is_sharded=True, how="async"),
    "dcp_first_half_sync": dcp_first_half(is_sharded=False, how="sync"),
    "dcp_first_half_sync_sharded": dcp_first_half(is_sharded=True, how="sync"),
    "dcp_first_half_mixed_sharded": dcp_first_half(is_sharded=True, how="mixed"),
    "dcp_second_half": dcp_second_half(is_sharded=False),
    "dcp_second_half_sharded": dcp_second_half(is_sharded=True),
    "dcp_look": dcp_look(is_sharded=False),
    "dcp_look_sharded": dcp_look(is_sharded=True),
    "dcp_alone_among_others": dcp_alone_among_others,
    "dcp_save_where_nothing_can_be": dcp_save_where_nothing_can_be,
    "save_sharded_tensor": save_sharded_tensor,
    "memory_fails": memory_fails_as_the_warning_comes,
}


def be_rank(scenario: str, rank: int, ranks: int, meeting: Path, env: dict[str, str]) -> Any:
    torch.set_num_threads(1)
    mine = {name: value for name, value in env.items() if not name[0].isdecimal()}
    mine |= {name.partition(":")[2]: value for name, value in env.items() if name.startswith(f"{rank}:")}
    os.environ.update(mine, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    try:
        answer = {"value": SCENARIOS[scenario](rank)}
    except (Exception, CheckpointException) as error:  # torch's is no Exception
        traceback.print_exc()
        answer = {"error": type(error).__name__, "text": str(error)}
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    return answer


def main() -> None:
    folder = Path(sys.argv[1])
    gc.freeze()  # or each rank copies what it looks through
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where gloo of some releases of torch has something to say
    for number, line in enumerate(sys.stdin):
        scenario, ranks, env = json.loads(line)
        pids = []
        for rank in range(ranks):
            pids.append(os.fork())
            if pids[-1] == 0:
                try:
                    answer = be_rank(scenario, rank, ranks, folder / f"meeting-{number}", env)
                    (folder / f"answer-{number}-{rank}").write_text(json.dumps(answer))
                finally:
                    os._exit(0)
        for pid in pids:
            os.waitpid(pid, 0)
        files = [folder / f"answer-{number}-{rank}" for rank in range(ranks)]
        found = [json.loads(file.read_text()) if file.exists() else None for file in files]
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
