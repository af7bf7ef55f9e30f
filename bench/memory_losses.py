"""What a failure costs a training: steps and seconds, with checkpoints in memory at every step against storage every so many.

    python bench/memory_losses.py --losses 5
    python bench/memory_losses.py --losses 3 --every 400 --mb 64
    python bench/memory_losses.py --losses 3 --mb 16 --mbit 100 --every 400   # a copy takes longer than a step

The same program on the same launcher, twice: `robust_run.checkpoint.save` after each step with --every, once as it is (memory at
every step, a copy on another node, storage every so many steps in the background), once with `--ckpt-memory off` (storage every
so many steps, which the ranks write). Two nodes and a standby are hosts in network namespaces (tests/hosts.py; needs root), one
rank a node, gloo. Each job loses a rank (SIGKILL), works on, and loses a node's power. Moments are spread evenly over the steps
between two checkpoints in storage, the same ones on both sides; sides take turns, a fresh cluster for each job.

    steps_lost      that had been made by a rank, and are made again
    back_s          from the loss until every rank has made the step after the newest that had been made: what the loss costs
    lost_s          back_s without the time that one step takes

The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from clusters import STEPS, ClusterJob, start_all, write
from hosts import Cluster, supported
from jobs import wait_for
from power_loss import SPREAD
from sidebyside import print_result, shown, spread, unwind_on_sigterm

MEMORY, STORAGE = "memory", "storage"
SIDES = (MEMORY, STORAGE)
LOSSES = ("rank", "node")
RANKS = 2
START_S = 120.0
FEW = 5

TRAIN = f"""{STEPS}
    import torch
    import torch.distributed as dist

    from robust_run import checkpoint

    dist.init_process_group("gloo")
    state = {{f"{{RANK}}.{{i}}": torch.ones(max(1, int(os.environ["BENCH_MB"]) * 1024 * 1024 // 16 // 4)) for i in range(16)}}
    at = checkpoint.load(state) or 0
    with open(f"{{STEPS_DIR}}/began.{{ATTEMPT}}.{{RANK}}.part", "w") as file:
        file.write(str(at))
    os.rename(file.name, file.name.removesuffix(".part"))
    done = torch.zeros(1)
    while not done:
        at += 1
        done[0] = float(RANK == 0 and os.path.exists(DONE))
        pause(float(os.environ["BENCH_STEP_S"]))
        dist.all_reduce(done)
        for tensor in state.values():
            tensor.add_(1)
        checkpoint.save(state, step=at, every=int(os.environ["BENCH_EVERY"]))
        step()
    dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Lost:
    """What a loss cost."""

    steps_lost: int
    back_s: float
    step_s: float
    """What a step took before."""
    source: str
    """Where the job went on from."""


class Run:
    """One job on three hosts."""

    def __init__(self, side: str, args: argparse.Namespace, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._every = cluster, args.every
        if args.mbit:
            hold_links(cluster, args.mbit)
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--standby", "1", "--max-restarts", "100"]
        options += ["--ckpt-dir", str(folder / "ckpt"), *(["--ckpt-memory", "off"] if side == STORAGE else [])]
        env = {"BENCH_MB": str(args.mb), "BENCH_STEP_S": str(args.step_s), "BENCH_EVERY": str(args.every)}
        self.job: ClusterJob = start_all(
            cluster, write(folder, TRAIN), tmp_path=folder, options=options, env=env, admission=True
        )
        self._attempt = 0

    def work_until(self, fraction: float) -> None:
        """Let it train until so far between two checkpoints in storage, one of which is there."""
        began = self._began(self._attempt)
        least = max(began + FEW, self._every)
        wanted = int(fraction * self._every)
        wanted += -((wanted - least) // self._every) * self._every
        self.job.wait_for_steps(self._attempt, RANKS, wanted - began, START_S + (wanted - began) * 2.0)

    def lose(self, what: str) -> Lost:
        """Lose a rank or a node; return what it cost."""
        workers = {each.rank: each for each in self.job.workers() if each.attempt == self._attempt}
        victim = next(
            rank for rank in (1, 0) if workers[rank].host != self._cluster[0].name
        )  # where the controller is stays
        host = next(each for each in self._cluster if each.name == workers[victim].host)
        lost_s, lost = time.monotonic(), self._attempt
        if what == "rank":
            subprocess.run(["kill", "-9", str(host.pid_outside(workers[victim].pid))], check=True)
        else:
            host.power_off()
        self._attempt = wait_for(self._trains_after, f"training to go on:\n{self.job.said()[-3000:]}", START_S)
        before = [each.times for each in self.job.workers() if each.attempt == lost]
        reached = self._began(lost) + max(map(len, before))
        began = self._began(self._attempt)
        again = reached - began
        after = self.job.wait_for_steps(self._attempt, RANKS, again + 1, START_S + again * 2.0)
        (chosen,) = [each for each in self.job.events("resume_chosen") if each["attempt"] == self._attempt]
        step_s = statistics.median(b - a for times in before for a, b in itertools.pairwise(times))
        return Lost(again, max(each.times[again] for each in after) - lost_s, step_s, chosen["source"] or "nothing")

    def _began(self, attempt: int) -> int:
        path = self.job.steps_dir / f"began.{attempt}.0"
        return int(path.read_text()) if path.exists() else 0

    def _trains_after(self) -> int:
        found = collections.Counter(each.attempt for each in self.job.workers() if len(each.times) >= 1)
        return max((each for each, ranks in found.items() if each > self._attempt and ranks == RANKS), default=0)


def hold_links(cluster: Cluster, mbit: float) -> None:
    """Hold what each host sends to so many Mbit/s."""
    for host in cluster:
        assert host._init, "it is on"
        qdisc = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "128k"]
        inside = ["nsenter", f"--net=/proc/{host._init.pid}/ns/net"]
        subprocess.run([*inside, *qdisc, "latency", "50ms"], check=True)


def one_job(side: str, args: argparse.Namespace, number: int, found: dict[tuple[str, str], list[Lost]]) -> None:
    """One job, and one loss of each kind."""
    with tempfile.TemporaryDirectory(prefix="memory-losses-") as name, Cluster(RANKS + 1, Path(name)) as cluster:
        run = Run(side, args, cluster, Path(name))
        try:
            run.job.wait_for_steps(0, RANKS, FEW, START_S)
            for at, what in enumerate(LOSSES):
                run.work_until((number + at / 2 + 1) * SPREAD % 1.0)
                found[what, side].append(run.lose(what))
                print(f"{what}, {side}, {number + 1}: {found[what, side][-1]}", flush=True)
        finally:
            run.job.kill_everything()


def case_of(what: str, found: dict[tuple[str, str], list[Lost]]) -> dict[str, Any]:
    """Summarize the losses of a kind; print them."""
    case: dict[str, Any] = {"name": what, "sides": {}}
    print(f"\n{'loss of a rank (SIGKILL)' if what == 'rank' else 'power loss of a node'}: median (min-max)")
    print(f"  {'':<12}{'steps lost':>28}{'back after, s':>28}{'lost, s':>28}   from")
    for side in SIDES:
        losses = found[what, side]
        figures = {
            "steps_lost": spread([each.steps_lost for each in losses]),
            "back_s": spread([round(each.back_s, 3) for each in losses]),
            "lost_s": spread([round(each.back_s - each.step_s, 3) for each in losses]),
        }
        sources = dict(collections.Counter(each.source for each in losses))
        case["sides"][side] = {**figures, "sources": sources}
        cells = "".join(f"{shown(figure):>28}" for figure in figures.values())
        print(f"  {side:<12}{cells}   {', '.join(sources)}", flush=True)
    return case


def ratios_of(found: dict[tuple[str, str], list[Lost]]) -> list[dict[str, Any]]:
    """What memory costs as a part of what storage costs, loss by loss."""
    ratios = []
    for what in LOSSES:
        pairs = list(zip(found[what, MEMORY], found[what, STORAGE], strict=False))
        rounds = [round((a.back_s - a.step_s) / (b.back_s - b.step_s), 3) for a, b in pairs]
        name = f"seconds lost with a {what}: memory over storage"
        ratios.append({"ratio": name, "median": round(statistics.median(rounds), 3), "rounds": rounds, "aim": "< 1"})
        print(f"{name:<56}{ratios[-1]['median']:>8.3f}")
    return ratios


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="What a failure costs a training: memory against storage.")
    parser.add_argument("--losses", type=int, default=5, help="jobs of each side, each with both losses (default 5)")
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints in storage (default 100)")
    parser.add_argument("--step-s", type=float, default=0.1, help="how long a step takes (default 0.1)")
    parser.add_argument("--mb", type=int, default=64, help="MiB of the state of each rank (default 64)")
    parser.add_argument(
        "--mbit", type=float, default=0.0, help="Mbit/s that links are held to; 0 (default): to nothing"
    )
    parser.add_argument("--limit-s", type=float, default=1800, help="start nothing new after this many seconds")
    args = parser.parse_args()
    unwind_on_sigterm()
    if reason := supported():
        raise SystemExit(reason)
    found: dict[tuple[str, str], list[Lost]] = {(what, side): [] for what in LOSSES for side in SIDES}
    deadline_s = time.monotonic() + args.limit_s
    for number in range(args.losses):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            if time.monotonic() < deadline_s or not number:
                one_job(side, args, number, found)
    cases = [case_of(what, found) for what in LOSSES]
    print()
    ratios = ratios_of(found)
    settings = {"every": args.every, "step_s": args.step_s, "state_mib": args.mb, "mbit": args.mbit}
    print_result("memory_losses", cases, **settings, ratios=ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
