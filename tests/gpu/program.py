"""What the ranks of these tests run: a small DistributedDataParallel training, over NCCL on a GPU or over gloo on the CPU.

    python program.py STEPS [FAULT [RANK [STEP]]]

RANK, WORLD_SIZE, BACKEND and STORE (a file) come from the environment; with SERVE torch's worker server of rank N listens at
`SERVE-N.sock`. It prints `step NUMBER SECONDS` after each step, when the
GPU is done with it, and at the end `done DIGEST` of all weights. Faults of rank RANK from step STEP on: `late` never makes the
next step, `slow` computes for 0.3 s more in each (SLOW_S).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH = 512, 6, 16
LONG_S = 3600.0
SLOW_S = float(os.environ.get("SLOW_S", "0.3"))
TIMEOUT_S = 600.0
PR_SET_PDEATHSIG = 1


def make_model(device: torch.device) -> DistributedDataParallel:
    torch.manual_seed(7)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    return DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=1)


def misbehave(fault: str, rank: int, step: int, own_rank: int, now: int) -> None:
    """Do what the fault is."""
    if own_rank != rank or now < step:
        return
    if fault == "late":
        time.sleep(LONG_S)
    if fault == "slow":
        end_s = time.monotonic() + SLOW_S
        while time.monotonic() < end_s:
            pass


def die_with_parent() -> None:
    """Be killed where the tests are: a rank that waits inside NCCL would keep the GPU busy for whoever comes next."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(steps: int, fault: str = "", faulty: int = -1, since: int = 0) -> None:
    rank, backend = int(os.environ["RANK"]), os.environ["BACKEND"]
    world_size = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = dist.FileStore(os.environ["STORE"], world_size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    if os.environ.get("SERVE"):
        server = _WorkerServer(f"{os.environ['SERVE']}-{rank}.sock", -1)
        globals()["kept"] = server  # it would end with this function
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = torch.Generator().manual_seed(rank)
    began_s = time.perf_counter()
    for step in range(1, steps + 1):
        misbehave(fault, faulty, since, rank, step)
        batch = torch.randn(BATCH, WIDTH, generator=noise).to(device)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if backend == "nccl":
            torch.cuda.synchronize()
        ended_s = time.perf_counter()
        print(f"step {step} {ended_s - began_s:.6f}", flush=True)
        began_s = ended_s  # so that no time is between two steps
    weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    print(f"done {hashlib.sha256(weights).hexdigest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    count, *rest = sys.argv[1:]
    what, who, when = (*rest, *("", "-1", "0")[len(rest) :])
    main(int(count), what, int(who), int(when))
