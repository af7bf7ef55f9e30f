"""A job of two ranks on one GPU, or over gloo on the CPU, which loses a rank and is relaunched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs import running, script, wait_for

#: As long as CUDA and NCCL take to start, twice.
PATIENCE_S = 240.0

#: Notes what it finds of CUDA at its first line; trains; in its first attempt until it is killed.
PROGRAM = """
import os, sys, time
rank, attempt, backend = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["BACKEND"]
os.environ["NCCL_HOSTID"] = "machine-" + rank
torch = sys.modules.get("torch")
began_with_cuda = torch is not None and torch.cuda.is_initialized()
import torch
import torch.distributed as dist
device = torch.device("cuda:0" if backend == "nccl" else "cpu")
dist.init_process_group(backend)
torch.manual_seed(1)
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while attempt == 0 or step < 5:
    optimizer.zero_grad()
    model(torch.ones(8, device=device)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    step += 1
    if step == 5:
        total = sum(parameter.double().sum().item() for parameter in model.parameters())
        with open(f"{os.environ['FOUND']}/{attempt}-{rank}.part", "w") as file:
            file.write(f"{began_with_cuda} {total!r}")
        os.rename(file.name, file.name[:-5])
    time.sleep(0.01)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Healed:
    """What is known of it afterwards."""

    rungs: list[str]
    """How rank 0 was started, by attempt."""
    began_with_cuda: list[bool]
    """Of each rank of each attempt: whether CUDA was initialised at its first line."""
    sums: list[str]
    """Of their weights after 5 steps."""


def healed(folder: Path, backend: str, env: Mapping[str, str], number: int) -> Healed:
    """Run the job, send rank 1 a signal in its first attempt, and wait for the job to end well."""
    env = {**env, "BACKEND": backend, "FOUND": str(folder)}
    with running(folder, "--nproc-per-node", "2", "--max-restarts", "3", script(folder, PROGRAM), env=env) as job:
        wait_for(lambda: _noted(folder, 0), "five steps of the first attempt", PATIENCE_S)
        wait_for(lambda: job.events("warm_ready") or job.process.poll() is not None, "the warm process", PATIENCE_S)
        os.kill(job.pids(0)[1], number)
        assert job.finish(PATIENCE_S) == 0, job.err
        started = job.events("attempt_started")
    told = [(folder / f"{attempt}-{rank}").read_text().split() for attempt in (0, 1) for rank in (0, 1)]
    return Healed(
        [event["how"][0] for event in started], [each[0] == "True" for each in told], [each[1] for each in told]
    )


def _noted(folder: Path, attempt: int) -> bool:
    return all((folder / f"{attempt}-{rank}").exists() for rank in (0, 1))
