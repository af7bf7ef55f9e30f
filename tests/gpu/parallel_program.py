"""Trainings of 200 steps (STEPS) in the ways of torch, whose every bit is told: `parallel_program.py ddp compiled fsdp2 dtensor`.

Each rank prints `digest WAY HASH` of its weights and of all losses. BACKEND is gloo (on the CPU) or nccl.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys

os.environ["NCCL_HOSTID"] = "machine-" + os.environ["RANK"]

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH, STEPS = 64, 3, 8, int(os.environ.get("STEPS", "200"))
CUDA = os.environ["BACKEND"] == "nccl"


def make_block() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH))


def make_model(way: str, device: torch.device) -> torch.nn.Module:
    torch.manual_seed(7)
    model = torch.nn.Sequential(*(make_block() for _ in range(LAYERS))).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if way == "fsdp2":
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif way == "dtensor":
        for block in model:
            parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        model = DistributedDataParallel(model)
        if way == "compiled":
            # On a GPU with CUDA graphs.
            model = torch.compile(model, mode="reduce-overhead" if CUDA else "default")
    return model


def train(way: str, device: torch.device) -> str:
    """Return the digest of one way."""
    model = make_model(way, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=way != "dtensor")
    # Ranks of tensor parallelism see one and the same batch.
    noise = torch.Generator().manual_seed(0 if way == "dtensor" else dist.get_rank())
    digest = hashlib.sha256()
    for _ in range(STEPS):
        batch = torch.randn(BATCH, WIDTH, generator=noise).to(device)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(loss.item().hex().encode())
    for parameter in model.parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        digest.update(own.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main(ways: list[str]) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group(os.environ["BACKEND"])
    for way in ways:
        print(f"digest {way} {train(way, device)}", flush=True)
    dist.destroy_process_group()


gc.freeze()  # torch's compiler makes much that stays: a third of the CPU was looking for garbage
gc.set_threshold(100_000, 50, 50)
main(sys.argv[1:])
