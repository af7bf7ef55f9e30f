"""What the benches share: jobs whose workers note times, medians side by side, one JSON line at the end.

All launchers run the same worker scripts in the same environment, in turns, so that a busy machine hurts all. All
times are CLOCK_MONOTONIC, which is one clock for all processes of a machine; durations are in seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BASELINE, OURS = "torchrun", "robust_run"
SIDES = (BASELINE, OURS)
"""What is compared unless a bench says otherwise."""
JOB_VARIABLE = "SIDEBYSIDE_JOB"
"""In the environment of every process of a job: its folder. By this we find them all again."""

MARKS = """
import os as _os
_NOTES = _os.open(
    _os.path.join(
        _os.environ["SIDEBYSIDE_JOB"],
        "marks-%s-%s" % (_os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), _os.environ["RANK"]),
    ),
    _os.O_WRONLY | _os.O_CREAT | _os.O_APPEND | _os.O_CLOEXEC,
)


def mark(name, at_s):
    _os.write(_NOTES, ("%s %.6f %d\\n" % (name, at_s, _os.getpid())).encode())
"""

"""Worker code that defines `mark(name, monotonic seconds)`: notes a time in a file per attempt and rank."""

BACKEND_VARIABLE = "SIDEBYSIDE_BACKEND"
"""gloo, or nccl: then all ranks share the first GPU, as machines of their own (see tests/gpu/ground.py)."""

#: A worker that talks to the others for ever, and notes its first moments.
TALKER = f"""import time; T0 = time.monotonic()
{MARKS}
mark("first_line", T0)
backend = _os.environ.get("{BACKEND_VARIABLE}", "gloo")
if backend == "nccl":
    _os.environ["NCCL_HOSTID"] = "machine-" + _os.environ["RANK"]
import torch
import torch.distributed as dist
mark("torch_imported", time.monotonic())
device = torch.device("cuda:0" if backend == "nccl" else "cpu")
dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
step = 0
while True:
    dist.all_reduce(torch.ones(1, device=device))
    step += 1
    if step == 1:
        mark("first_all_reduce", time.monotonic())
        model = torch.nn.Linear(4, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
    optimizer.zero_grad()
    loss = model(torch.ones(4, device=device)).sum()
    loss.backward()
    optimizer.step()
    loss.item()  # a step is over when the GPU is done with it
    if step == 1:
        mark("first_step", time.monotonic())
    if step == 5:
        mark("fifth_step", time.monotonic())
    time.sleep(0.02)
"""

Marks = dict[int, dict[str, float]]
"""By rank: when it noted what, in seconds of the monotonic clock."""


@dataclass
class Job:
    """A launcher at work. Its workers' notes and its output are in `folder`."""

    folder: str
    launcher: subprocess.Popen[bytes]
    started_at_s: float
    pids: set[int] = field(default_factory=set)
    """Workers that have noted something."""

    def marks(self, attempt: int) -> Marks:
        """What the workers of an attempt have noted so far."""
        found: Marks = {}
        prefix = f"marks-{attempt}-"
        for name in os.listdir(self.folder):
            if name.startswith(prefix):
                found[int(name[len(prefix) :])] = self._read(os.path.join(self.folder, name))
        return found

    def pid_of(self, attempt: int, rank: int) -> int:
        """Process id of a worker that has noted something."""
        with open(os.path.join(self.folder, f"marks-{attempt}-{rank}"), encoding="ascii") as file:
            return int(file.readline().split()[2])

    def has_attempt(self, attempt: int) -> bool:
        """Whether a worker of this attempt has begun."""
        return any(name.startswith(f"marks-{attempt}-") for name in os.listdir(self.folder))

    def output(self) -> str:
        """The last lines of what launcher and workers printed."""
        with open(os.path.join(self.folder, "output.log"), encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-15:])

    def _read(self, path: str) -> dict[str, float]:
        notes: dict[str, float] = {}
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.endswith("\n"):  # else it is still being written
                    name, at_s, pid = line.split()
                    notes.setdefault(name, float(at_s))
                    self.pids.add(int(pid))
        return notes


SETTINGS_OF_LAUNCHERS = ("PET_", "TORCHELASTIC_", "TORCH_DISABLE_SHARE_RDZV", "ROBUST_", "FT_")
"""Variables that begin so would set a launcher differently from what people get by default."""


def start_job(command: list[str], folder: str, settings: Mapping[str, str] | None = None) -> Job:
    """Start a launcher, with more variables, in an empty folder that becomes its working directory and its TMPDIR."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS_OF_LAUNCHERS)}
    for name in ("PYTHONDONTWRITEBYTECODE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)  # an installed launcher has its bytecode compiled
    environment |= {**(settings or {}), JOB_VARIABLE: folder, "TMPDIR": folder}
    with open(os.path.join(folder, "output.log"), "wb") as output:
        started_at_s = time.monotonic()
        launcher = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    return Job(folder, launcher, started_at_s)


def unwind_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that a bench which is told to stop ends its jobs first."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def end_job(job: Job, grace_s: float = 5.0) -> None:
    """End every process of a job: ask the launcher, then SIGKILL whatever is left of it anywhere."""
    if job.launcher.poll() is None:
        job.launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.launcher.wait(grace_s)
    deadline_s = time.monotonic() + 10
    while left := list(processes_of(job.folder)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.launcher.poll()
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"processes {left} survive SIGKILL for 10 s: end them by hand")
        time.sleep(0.02)
    job.launcher.wait()


def processes_of(folder: str) -> Iterator[int]:
    """Living processes of a job, found by the variable they inherited."""
    wanted = f"{JOB_VARIABLE}={folder}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    yield int(name)
        except OSError:
            continue  # gone meanwhile, or somebody else's


# --- figures --------------------------------------------------------------------------------------------------------


class Figures:
    """Durations in seconds, by name and side, in the order they first came in."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, side: str, durations: dict[str, float]) -> None:
        """Take in what one run or one restart showed."""
        for name, seconds in durations.items():
            self._values.setdefault(name, {}).setdefault(side, []).append(round(seconds, 6))

    def has(self, side: str) -> bool:
        """Whether anything came in from this side."""
        return any(side in by_side for by_side in self._values.values())

    def summary(self, ratios: Mapping[str, str] | None = None) -> dict[str, Any]:
        """For each figure: median, min, max and all values of each side, and ours as fractions of others'.

        `ratios` names the side that each fraction is taken of; by default `ratio` is of torchrun's.
        """
        result: dict[str, Any] = {}
        for name, by_side in self._values.items():
            result[name] = {side: spread(values) for side, values in by_side.items()}
            for ratio, side in (ratios or {"ratio": BASELINE}).items():
                if OURS in by_side and side in by_side and result[name][side]["median"] > 0:
                    result[name][ratio] = round(result[name][OURS]["median"] / result[name][side]["median"], 4)
        return result


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, min, max and all of some values."""
    return {
        "median": round(statistics.median(values), 6),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def print_figures(title: str, summary: dict[str, Any]) -> None:
    """A table: a line per figure, both sides, and the ratio."""
    print(f"\n{title}")
    print(f"  {'seconds, median (min-max)':<34}{'torchrun':>24}{'robust-run':>24}{'ours/torchrun':>16}")
    for name, figure in summary.items():
        cells = "".join(f"{shown(figure.get(side)):>24}" for side in SIDES)
        ratio = f"{figure['ratio']:.3f}" if "ratio" in figure else "-"
        print(f"  {name.removesuffix('_s').replace('_', ' '):<34}{cells}{ratio:>16}", flush=True)


def shown(figure: dict[str, Any] | None) -> str:
    """A `spread` for people."""
    return "-" if figure is None else f"{figure['median']:.3f} ({figure['min']:.3f}-{figure['max']:.3f})"


# --- command line and result ----------------------------------------------------------------------------------------


def add_common_options(parser: argparse.ArgumentParser, limit_s: float) -> None:
    """Options of a bench that compares torchrun and robust-run."""
    add_launcher_options(parser, limit_s)
    parser.add_argument("--only", choices=SIDES, help="measure one side alone")


def add_launcher_options(parser: argparse.ArgumentParser, limit_s: float) -> None:
    """Options that every bench has."""
    scripts = os.path.dirname(sys.executable)
    parser.add_argument("--torchrun", default=os.path.join(scripts, "torchrun"), help="default: beside this Python")
    parser.add_argument("--robust-run", default=os.path.join(scripts, "robust-run"), help="default: beside this Python")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="start nothing new after this many seconds")


def sides(args: argparse.Namespace) -> list[str]:
    """The sides to measure. Exits with a line if a launcher is missing."""
    chosen = [args.only] if args.only else list(SIDES)
    for side in chosen:
        path = getattr(args, side)
        if not os.access(path, os.X_OK):
            raise SystemExit(f"{path} is not an executable: install it, or give --{side.replace('_', '-')} PATH")
    return chosen


def launcher_command(args: argparse.Namespace, side: str, nproc: int, *more: str) -> list[str]:
    """How people start `nproc` workers on one machine with this launcher."""
    path = os.path.abspath(getattr(args, side))
    standalone = ["--standalone"] if side == BASELINE else []
    return [path, *standalone, "--nproc-per-node", str(nproc), *more]


def numbers(text: str) -> list[int]:
    """`2,4` as numbers. Raises argparse.ArgumentTypeError."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 2,4")
    return values


def machine() -> dict[str, Any]:
    """Where this was measured."""
    from importlib import metadata

    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": metadata.version("torch"),
    }


def print_result(bench: str, cases: Iterable[dict[str, Any]], **more: Any) -> None:
    """The last line of standard output: everything, as one JSON object."""
    print()
    print(json.dumps({"bench": bench, "schema": 1, "machine": machine(), **more, "cases": list(cases)}), flush=True)
