"""The training program that every fault strikes: a few small tensors over gloo, in one of several parallel layouts.

    dp         DistributedDataParallel over all ranks: torch starts its collectives in C++
    dp_manual  the same by hand, with all_reduce in Python
    tp_dp      tensor parallel 2 x data parallel
    tp_dp_pp   tensor parallel 2 x data parallel x pipeline of 2 stages, with send and recv between them (world 4: TP 2 x PP 2)
    fsdp       sharded by hand: all_gather and reduce_scatter for each of four layers
    fsdp2      torch's own fully_shard

It knows nothing of robust-run and of its tracing. What to do and what goes wrong is a `plan.Plan` in the environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from acts import Saboteur
from flight import dump_of_failure, dump_when_asked
from habits import Habits
from plan import Heart, Plan
from slowness import crunch
from talk import SIZE, Place, Talk, take_place
from torch import Tensor, nn

LAYERS = 4
WIDTH = 16


class Training:
    """A rank at work."""

    def __init__(self, plan: Plan, place: Place, saboteur: Saboteur, habits: Habits) -> None:
        self.plan, self.place, self.saboteur, self.habits = plan, place, saboteur, habits
        self.talk = Talk(place, saboteur)
        torch.manual_seed(plan.seed)
        self.model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        if plan.layout == "dp":
            self.model = nn.parallel.DistributedDataParallel(self.model, process_group=place.groups["dp"])
        elif plan.layout == "fsdp2":
            _shard_fully(self.model, place.world)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.optimizer.register_step_pre_hook(lambda *_: saboteur.at("optimizer"))
        self.make_step: Callable[[], None] = getattr(self, f"_{plan.layout.replace('fsdp2', 'dp')}_step")

    def step(self, number: int) -> None:
        """Make one step, whatever goes wrong in it."""
        self.saboteur.step = number
        self.habits.before_step(number)
        self.saboteur.at("start")
        self.saboteur.at("data")
        self.rate = self.talk.learning_rate()
        self.compute()
        self.make_step()

    def compute(self) -> None:
        """What a step takes without any communication."""
        time.sleep(self.plan.step_s * self.habits.stage_factor(self.place.stage))
        crunch(self.plan.numbers.get("cpu_s", 0.0))
        self.saboteur.at("compute")

    def forward_backward(self) -> None:
        """Compute gradients."""
        self.optimizer.zero_grad()
        quiet = self.model.no_sync if self.saboteur.tampers("no_sync") else nullcontext
        with quiet():
            self.model(torch.ones(2, WIDTH)).square().mean().backward()

    def update(self) -> None:
        """Change the weights, and learn how all are doing."""
        self.optimizer.step()
        self.talk.metrics()

    def _dp_step(self) -> None:
        self.saboteur.at("before_dp")
        if self.saboteur.tampers("swallowed"):
            return
        self.forward_backward()
        self.update()

    def _dp_manual_step(self) -> None:
        self.forward_backward()
        if self.saboteur.tampers("swallowed"):
            return
        self.saboteur.at("before_dp")
        self.talk.all_reduce(self._gradients(), "dp")
        self.talk.all_reduce_later(torch.ones(2), "metrics")
        self.update()

    def _tp_dp_step(self) -> None:
        activations = torch.ones(SIZE)
        self.talk.all_reduce(activations, "tp")
        if self.saboteur.tampers("swallowed"):
            return
        self.forward_backward()
        self.talk.in_order(activations, self._gradients())
        self.update()

    def _tp_dp_pp_step(self) -> None:
        place, activations = self.place, torch.ones(SIZE)
        if place.stage > 0:
            self.talk.recv(activations, place.rank - place.per_stage)
        self.talk.all_reduce(activations, "tp")
        if place.stage < place.pp - 1:
            self.talk.send(activations, place.rank + place.per_stage)
        if self.saboteur.tampers("swallowed"):
            return
        if place.stage < place.pp - 1:
            self.talk.recv(activations, place.rank + place.per_stage)
        self.forward_backward()
        if place.stage > 0:
            self.talk.send(activations, place.rank - place.per_stage)
        self.talk.in_order(activations, self._gradients())
        self.update()

    def _fsdp_step(self) -> None:
        shards = [torch.ones(64) for _ in range(LAYERS)]
        whole = torch.empty(64 * self.place.world)
        for layer, shard in enumerate(shards):
            self.talk.gather(whole, shard, layer)
        if self.saboteur.tampers("swallowed"):
            return
        self.forward_backward()
        self.saboteur.at("before_dp")
        for shard in reversed(shards):
            self.talk.scatter(shard, whole)
        self.talk.all_reduce(torch.ones(16), "norm")
        self.talk.all_reduce_later(torch.ones(2), "metrics")
        self.update()

    def _gradients(self) -> Tensor:
        return torch.cat([each.grad.flatten() for each in self.model.parameters() if each.grad is not None])


def _shard_fully(model: nn.Module, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_unevenly(training: Training, heart: Heart) -> None:
    """Train with torch's Join: later ranks have fewer batches, and wait for the others in its context."""
    from torch.distributed.algorithms import Join

    batches = training.plan.steps - 20 * training.place.rank
    with Join([training.model]):
        for number in range(batches):
            training.saboteur.step = number
            training.compute()
            training.forward_backward()
            training.optimizer.step()
            heart.beat(number + 1)


def main() -> None:
    """Train until told otherwise."""
    torch.set_num_threads(1)
    plan = Plan.from_environment(os.environ)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    saboteur = Saboteur(plan, rank)
    saboteur.at("init")
    dist.init_process_group("gloo")
    if plan.dumps:
        dump_when_asked(plan, rank)
    saboteur.at("groups")
    place = take_place(plan.layout, rank, world)
    training = Training(plan, place, saboteur, Habits(plan, rank, world))
    heart = Heart(plan, rank)
    try:
        if plan.fault == "uneven_join":
            train_unevenly(training, heart)
        else:
            for number in range(plan.steps):
                training.step(number)
                heart.beat(number + 1)
        saboteur.at("end")
        dist.barrier()
    except Exception:
        dump_of_failure(plan, rank)  # as a job with torch's flight recorder does when a collective fails
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
