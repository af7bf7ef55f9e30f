"""Real jobs whose code is updated while they run: a program that trains, and the commands people type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jobs import Job, wait_for
from small_optimizer import SGD

from robust_run.launcher.operator.code.remote import versions_to_read

#: Trains until its version of `model.py` says that it is enough, and goes on where it was. Every attempt notes what it is.
TRAIN = f"""
import json, os, sys, time
import torch, torch.distributed as dist
import model
{SGD}
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
net = torch.nn.Linear(4, 4)
optimizer = SGD(net.parameters(), lr=0.1)
step = 0
if os.path.exists("weights.pt"):
    saved = torch.load("weights.pt")
    net.load_state_dict(saved["net"])
    step = saved["step"]
facts = {{
    "scale": model.SCALE, "argv": sys.argv[1:], "from": step, "file": __file__, "model": model.__file__,
    "version": os.environ["ROBUST_CODE_VERSION"], "flavour": os.environ.get("FLAVOUR"),
}}
with open(f"began-{{attempt}}-{{rank}}.tmp", "w") as file:
    json.dump(facts, file)
os.replace(f"began-{{attempt}}-{{rank}}.tmp", f"began-{{attempt}}-{{rank}}")
while True:
    enough = torch.tensor([float(os.path.exists("enough"))])
    dist.all_reduce(enough)
    if enough:
        break
    model.at_step(step, net, attempt)
    loss = (net(torch.ones(4)) * model.SCALE).mean() * 0
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(net.weight.grad)
    optimizer.step()
    step += 1
    if rank == 0 and step % 5 == 0 and bool(torch.isfinite(net.weight).all()):
        torch.save({{"step": step, "net": net.state_dict()}}, "weights.tmp")
        os.replace("weights.tmp", "weights.pt")
dist.destroy_process_group()
"""

MODEL = """
import os, time
SCALE = {scale}
def at_step(step, net, attempt):
    time.sleep({pause})
    {extra}
"""


def write_code(folder: Path, scale: int = 1, pause: float = 0.02, extra: str = "pass") -> None:
    """Write the program and its model into a folder.

    Of the same second and length as what Python has compiled, it is taken for that: quick tests need another length.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text(MODEL.format(scale=scale, pause=pause, extra=extra))


def robust(folder: Path, *words: str, code: int | None = 0, run: Job | None = None) -> subprocess.CompletedProcess[str]:
    """Type a `robust` command in a folder, about the job that runs there."""
    about = [str(run.run_dir)] if run is not None else []
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words, *about]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, timeout=120, check=False)
    assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def began(folder: Path, attempt: int, rank: int = 0, timeout_s: float = 120.0) -> dict[str, Any]:
    """Return what a rank of an attempt was, once it is."""
    path = folder / f"began-{attempt}-{rank}"
    wait_for(path.exists, f"attempt {attempt} of rank {rank}", timeout_s)
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def fates(job: Job, folder: Path) -> dict[int, str]:
    """Return what became of each version."""
    ledger = json.loads(robust(folder, "code", "log", "--json", run=job).stdout)
    return {record["version"]["number"]: record["fate"] for record in ledger.get("records", [])}


def wait_for_fate(job: Job, folder: Path, number: int, fate: str) -> None:
    """Wait until this became of a version: `robust code log` says so, whose question is asked here again and again."""

    def now() -> dict[int, str]:
        about = versions_to_read(os.environ, run=str(job.run_dir), log_dir="", url="", token_file="", tls_ca="")
        return {record.version.number: record.fate for record in about.view().code.records}

    wait_for(lambda: now().get(number) == fate, f"version {number} to be {fate}")
    assert fates(job, folder)[number] == fate


def wait_for_steps(folder: Path, attempt: int) -> None:
    """Wait until an attempt has saved weights of its own."""
    before = began(folder, attempt)["from"]
    path = folder / "weights.pt"
    started = os.stat(folder / f"began-{attempt}-0").st_mtime_ns
    wait_for(lambda: path.exists() and path.stat().st_mtime_ns > started, f"weights after step {before}")


def finish(job: Job, folder: Path) -> int:
    """Let the job end by itself; return its exit code."""
    (folder / "enough").touch()
    return job.finish()


def crash(job: Job, attempt: int) -> None:
    """Kill a rank of an attempt from outside."""
    os.kill(job.pids(attempt)[-1], 9)
