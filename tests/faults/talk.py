"""The communication of the training program: its process groups, and calls that a tampering can bend."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from acts import Saboteur
from layouts import PRIMARY, shape
from torch import Tensor

warnings.filterwarnings("ignore", category=FutureWarning)
# Their names change with torch 2.13; both are there for now.
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
SIZE = 1024


@dataclass
class Place:
    """Where a rank stands, and the groups it is in."""

    rank: int
    world: int
    layout: str
    tp: int = 1
    dp: int = 1
    pp: int = 1
    groups: dict[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> int:
        """Its stage of the pipeline, from 0."""
        return self.rank // (self.tp * self.dp)

    @property
    def per_stage(self) -> int:
        """Ranks in a stage."""
        return self.tp * self.dp


def take_place(layout: str, rank: int, world: int) -> Place:
    """Make all groups, each with what the program calls it."""
    tp, dp, pp = shape(layout, world)
    place = Place(rank, world, layout, tp, dp, pp)
    everyone = list(range(world))
    grid = torch.arange(world).view(pp, dp, tp)
    wanted: list[tuple[str, list[list[int]]]] = [("metrics", [everyone])]
    if layout in ("dp", "dp_manual"):
        wanted.append(("dp", [everyone]))
    if layout == "fsdp":
        wanted += [("shard", [everyone]), ("norm", [everyone])]
    if tp > 1:
        wanted.append(("tp", grid.reshape(-1, tp).tolist()))
        if dp > 1:
            wanted.append(("dp", grid.transpose(1, 2).reshape(-1, dp).tolist()))
    if pp > 1:
        wanted.append(("pp", grid.permute(1, 2, 0).reshape(-1, pp).tolist()))
    for name, members in wanted:
        for number, ranks in enumerate(members):
            group = dist.new_group(ranks, group_desc=f"{name}_{number}")
            if rank in ranks:
                place.groups[name] = group
    return place


class Talk:
    """What a rank says to its peers."""

    def __init__(self, place: Place, saboteur: Saboteur) -> None:
        self.place, self.saboteur = place, saboteur
        self.primary = PRIMARY[place.layout]
        self.metrics_done = False

    def all_reduce(self, tensor: Tensor, name: str) -> None:
        """Sum over a group, if it is no group of one."""
        group = self.place.groups.get(name)
        if group is None:
            return
        bent = ""
        if name == self.primary:
            self.saboteur.others_are_late()
            self.saboteur.at("late")
            bent = self.saboteur.tampers(
                "size", "dtype", "op_type", "broadcast_type", "skipped", "extra", "extra_barrier"
            )
        if bent == "size":
            dist.all_reduce(tensor.new_ones(tensor.numel() // 2), group=group)
        elif bent == "dtype":
            dist.all_reduce(tensor.double(), group=group)
        elif bent == "op_type":
            dist.all_gather([torch.empty_like(tensor) for _ in range(group.size())], tensor, group=group)
        elif bent == "broadcast_type":
            dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)
        elif bent != "skipped":
            dist.all_reduce(tensor, group=group)
        if bent == "extra":
            dist.all_reduce(tensor, group=group)
        elif bent == "extra_barrier":
            dist.barrier(group=group)

    def all_reduce_later(self, tensor: Tensor, name: str) -> None:
        """Sum over a group while something else is done."""
        group = self.place.groups.get(name)
        if group is None:
            return
        if name == self.primary:
            self.all_reduce(tensor, name)
            return
        work = dist.all_reduce(tensor, group=group, async_op=True)
        self.saboteur.at("issued")
        work.wait()

    def learning_rate(self) -> float:
        """Get it from rank 0."""
        rate = torch.tensor([0.01])
        root = 0
        if self.saboteur.tampers("wrong_root"):
            # Itself: of another root's tree, its place might be the same as in the right one, and nothing would happen.
            root = self.place.rank or 1
        dist.broadcast(rate, root, group=self.place.groups["metrics"])
        return float(rate)

    def in_order(self, activations: Tensor, gradients: Tensor) -> None:
        """The tensor parallel sum, then the one of the gradients. Tampered with: the step's last sum comes first."""
        if self.saboteur.tampers("order"):
            self.metrics()
            self.metrics_done = True
        self.all_reduce(activations, "tp")
        self.saboteur.at("before_dp")
        self.all_reduce_later(gradients, "dp" if "dp" in self.place.groups else "pp")

    def metrics(self) -> None:
        """Learn how all are doing: the last sum of a step."""
        if not self.metrics_done:
            self.all_reduce(torch.ones(8), "metrics")
        self.metrics_done = False

    def send(self, tensor: Tensor, peer: int) -> None:
        """To another stage."""
        bent = self.saboteur.tampers("no_send", "other_tag")
        if bent != "no_send":
            dist.send(tensor, peer, tag=7 if bent == "other_tag" else 0)

    def recv(self, tensor: Tensor, peer: int) -> None:
        """From another stage."""
        bent = self.saboteur.tampers("extra_recv", "wrong_peer", "recv_any")
        if bent == "wrong_peer":
            begin = peer - peer % self.place.per_stage
            peer = begin + (peer - begin + 1) % self.place.per_stage
        dist.recv(tensor, peer)
        if bent == "extra_recv":
            dist.recv(tensor, peer)
        elif bent == "recv_any":
            dist.recv(tensor)

    def gather(self, whole: Tensor, shard: Tensor, layer: int) -> None:
        """Put a layer's weights together from all shards."""
        if layer == 2 and self.saboteur.tampers("skip_layer"):
            return
        ALL_GATHER(whole, shard, group=self.place.groups["shard"])

    def scatter(self, shard: Tensor, whole: Tensor) -> None:
        """Sum a layer's gradients, and keep the own shard."""
        REDUCE_SCATTER(shard, whole, group=self.place.groups["shard"])
