"""What the jobs of `test_jobs` run: a small training as users write it; from step 20 on rank 1 has the fault that FAULT names.

Over NCCL each rank takes itself for a machine of its own, see `ground`. With CPU=1 it trains over gloo: a rehearsal.
"""

from __future__ import annotations

import os
import time

os.environ["NCCL_HOSTID"] = "machine-" + os.environ["RANK"]

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FAULT, ON_CPU = os.environ["FAULT"], os.environ.get("CPU") == "1"
FROM_STEP = 20
RANK = int(os.environ["RANK"])


def compute_for_ever(device: torch.device) -> None:
    """A kernel that takes hours, and a value that comes after it."""
    if ON_CPU:
        while True:
            pass
    for _ in range(10_000):
        torch.cuda._sleep(2_000_000_000)
    torch.ones(1, device=device).item()


def burn_in_python() -> None:
    number = 0
    while True:
        number += 1


def index_out_of_range(device: torch.device) -> None:
    table = torch.zeros(10, 4, device=device)
    table[torch.tensor([12], device=device)].sum().item()


def other_call(device: torch.device) -> None:
    """Peers are in all_reduce."""
    dist.broadcast(torch.ones(1 << 20, device=device), 0)
    torch.cuda.synchronize() if not ON_CPU else None


def misbehave(device: torch.device, attempt: int) -> None:
    """Do what the fault is, in the first attempt."""
    if attempt:
        return
    if FAULT in ("sleeps", "sleeps_synchronize", "sleeps_stream"):
        time.sleep(3600)
    elif FAULT == "burns":
        burn_in_python()
    elif FAULT == "kernel":
        compute_for_ever(device)
    elif FAULT == "assert":
        index_out_of_range(device)
    elif FAULT == "memory":
        torch.empty(1 << 44, device=device)
    elif FAULT == "raises":
        raise ValueError("label 50257 is out of range")
    elif FAULT == "other_call":
        other_call(device)


def main() -> None:
    device = torch.device("cpu" if ON_CPU else "cuda:0")
    dist.init_process_group("gloo" if ON_CPU else "nccl")
    torch.manual_seed(7)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in range(1, int(os.environ.get("STEPS", "40")) + 1):
        if step >= FROM_STEP and RANK == 1:
            misbehave(device, attempt)
        if FAULT == "slow" and RANK == 1:
            end_s = time.monotonic() + 0.25
            while time.monotonic() < end_s:
                pass
        if FAULT == "waits_once" and RANK == 1 and step == FROM_STEP:
            time.sleep(12)
        loss = model(torch.randn(16, 256, device=device)).square().mean()
        if FAULT == "other_call" and step >= FROM_STEP and not attempt:
            dist.all_reduce(torch.ones(1 << 18, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if FAULT == "sleeps_synchronize" and not ON_CPU:
            torch.cuda.synchronize()
        elif FAULT == "sleeps_stream" and not ON_CPU:
            torch.cuda.current_stream().synchronize()
        else:
            loss.item()
        if RANK == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()


main()
