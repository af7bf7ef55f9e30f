"""How long until a job of two nodes works again after one of them lost power: robust-run with a standby, and torchrun.

    python bench/node_loss.py --losses 8
    python bench/node_loss.py --sides robust_run --losses 20

The nodes are hosts in network namespaces (tests/hosts.py; needs root): the one that is lost is silent from one moment to the
next, and no packet says so. A third host is at hand on both sides: robust-run's standby, and one more agent that waits at
torchrun's rendezvous (--nnodes 1:2). The job is a loop of gloo all_reduce, one worker a node. Sides take turns, a fresh cluster
for each loss; the moment of the loss is spread over the time between heartbeats. Durations count from just before the power
goes. A job in which nothing has happened after --timeout-s counts as never recovered. The last line of standard output is
one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hosts import Cluster, Host, supported
from sidebyside import (
    BASELINE,
    JOB_VARIABLE,
    OURS,
    SETTINGS_OF_LAUNCHERS,
    TALKER,
    Figures,
    add_common_options,
    print_result,
    shown,
    sides,
    unwind_on_sigterm,
)

START_S = 60.0
"""A job that takes longer to get going is broken."""
LOOK_EVERY_S = 0.005
SPREAD = 0.618
"""Fraction of the time between heartbeats by which the moment of the loss moves from one to the next."""
PORT = 29400
AIMS_S = {"verdict_s": 4.0, "first_all_reduce_last_rank_s": 4.5}

COLUMNS = {
    "verdict_s": "verdict",
    "workers_ordered_s": "workers ordered",
    "first_line_last_rank_s": "all first lines",
    "first_all_reduce_last_rank_s": "first all_reduce",
}
LABELS = {BASELINE: "torchrun --nnodes 1:2", OURS: "robust-run --nnodes 2 --standby 1"}


class Run:
    """One job on a cluster of three, and what its workers noted."""

    def __init__(self, side: str, args: argparse.Namespace, cluster: Cluster, folder: Path) -> None:
        self.side = side
        self._args = args
        self._cluster = cluster
        self._folder = folder
        self._script = folder / "worker.py"
        self._script.write_text(TALKER, encoding="utf-8")

    def start(self, host: Host) -> None:
        """Start the launcher on a host."""
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self._cluster[0].address}:{PORT}", "--rdzv-id", "b"]
        if self.side == OURS:
            more = ["--nnodes", "2", "--standby", "1", "--run-id", "b", "--log-dir", str(self._folder / "runs")]
        else:
            more = ["--nnodes", "1:2", "--nproc-per-node", "1"]
        command = [os.path.abspath(getattr(self._args, self.side)), *meeting, *more]
        command += ["--max-restarts", "100", str(self._script)]
        variables = {
            "GLOO_SOCKET_IFNAME": "eth0",
            "ROBUST_TOKEN": "the secret of a bench",
            JOB_VARIABLE: str(self._folder),
        }
        host.start(command, env=variables, cwd=self._folder, name="launcher")

    def notes(self, name: str, after_s: float = 0.0) -> dict[int, float]:
        """When each rank first noted something after a moment."""
        found: dict[int, float] = {}
        for path in self._folder.glob("marks-*-*"):
            rank = int(path.name.rpartition("-")[2])
            for line in path.read_text(encoding="ascii").splitlines(keepends=True):
                what, at_s, _ = line.split() if line.endswith("\n") else ("", "0", "")
                if what == name and float(at_s) > after_s:
                    found[rank] = min(found.get(rank, float("inf")), float(at_s))
        return found

    def journal(self) -> list[dict[str, Any]]:
        """What robust-run has decided so far."""
        path = self._folder / "runs" / "b" / "journal.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def count(self, event: str) -> int:
        """How many events of a kind are in the journal."""
        return sum(line.get("event", {}).get("type") == event for line in self.journal())

    def ordered_at_s(self, action: str, number: int = 0) -> float | None:
        """When the controller ordered something, the `number`th time."""
        found = [line["mono"] for line in self.journal() if line.get("action", {}).get("type") == action]
        return found[number] if len(found) > number else None

    def output(self) -> str:
        """The last lines of what was said on the hosts."""
        return "\n".join(
            line
            for path in sorted(self._folder.glob("hosts-*/*/*launcher.*"))
            for line in path.read_text().splitlines()[-8:]
        )


def wait(condition: Callable[[], Any], limit_s: float) -> bool:
    """Wait for a condition; return whether it came true."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def lose_one(side: str, args: argparse.Namespace, number: int, figures: Figures) -> str:
    """One job, one power loss. Returns what came of it: recovered, nothing_happened or broken_start."""
    with tempfile.TemporaryDirectory(prefix="node-loss-") as name, Cluster(3, Path(name)) as cluster:
        run = Run(side, args, cluster, Path(name))
        for host in (cluster[0], cluster[1]):
            run.start(host)
        ready = wait(lambda: len(run.notes("fifth_step")) == 2, START_S)
        run.start(cluster[2])
        if ready and side == OURS:
            ready = wait(lambda: run.count("standby_ready") >= 3, START_S)
        if not ready:
            print(f"{side}: the job did not start\n{run.output()}", flush=True)
            return "broken_start"
        time.sleep(args.run_s + (number * SPREAD) % 1.0)
        lost_s = time.monotonic()
        cluster[1].power_off()
        if not wait(lambda: len(run.notes("first_all_reduce", lost_s)) == 2, args.timeout_s):
            return "something_else_happened" if run.notes("first_line", lost_s) else "nothing_happened"
        durations = {
            f"{note}_last_rank_s": max(run.notes(note, lost_s).values()) - lost_s
            for note in ("first_line", "first_all_reduce")
        }
        if side == OURS:
            verdict_s, ordered_s = run.ordered_at_s("record_incident"), run.ordered_at_s("start_attempt", 1)
            assert verdict_s is not None and ordered_s is not None
            durations = {"verdict_s": verdict_s - lost_s, "workers_ordered_s": ordered_s - lost_s, **durations}
        figures.add(side, durations)
        return "recovered"


def measure(args: argparse.Namespace, chosen: list[str]) -> dict[str, Any]:
    """All losses, the sides in turns, and their table. Returns the case for the JSON line."""
    figures = Figures()
    outcomes: dict[str, list[str]] = {side: [] for side in chosen}
    deadline_s = time.monotonic() + args.limit_s
    for number in range(args.losses):
        for side in chosen:
            if time.monotonic() > deadline_s:
                print(f"stopped: --limit-s {args.limit_s:.0f} is over", flush=True)
                break
            outcomes[side].append(lose_one(side, args, number, figures))
            print(f"{side}, loss {number + 1}: {outcomes[side][-1]}", flush=True)
    summary = figures.summary()
    print("\nseconds from the power loss of one of two nodes: median (min-max)")
    print(f"  {'':<36}{'recovered':>10}" + "".join(f"{title:>22}" for title in COLUMNS.values()))
    for side in chosen:
        cells = "".join(f"{shown(summary.get(name, {}).get(side)):>22}" for name in COLUMNS)
        recovered = f"{outcomes[side].count('recovered')} of {len(outcomes[side])}"
        print(f"  {LABELS[side]:<36}{recovered:>10}{cells}")
    return {
        "case": "node_loss",
        "losses": {side: dict(collections.Counter(outcomes[side])) for side in chosen},
        "figures": summary,
        "aims_s": AIMS_S,
        "aims_met": {
            name: summary[name][OURS]["median"] <= aim_s
            for name, aim_s in AIMS_S.items()
            if OURS in summary.get(name, {})
        },
    }


def main() -> int:
    """Run the bench. Returns 1 if a side could not be measured at all."""
    parser = argparse.ArgumentParser(description="Recovery after the power loss of a node: robust-run and torchrun.")
    parser.add_argument("--losses", type=int, default=8, help="losses to try on each side")
    parser.add_argument(
        "--timeout-s", type=float, default=20.0, help="a job in which nothing happened for so long never recovers"
    )
    parser.add_argument("--run-s", type=float, default=2.0, help="how long a job works before the loss, at least")
    parser.add_argument("--quick", action="store_true", help="2 losses")
    add_common_options(parser, limit_s=3000)
    args = parser.parse_args()
    unwind_on_sigterm()
    if reason := supported():
        raise SystemExit(reason)
    for name in [name for name in os.environ if name.startswith(SETTINGS_OF_LAUNCHERS)]:
        del os.environ[name]
    if args.quick:
        args.losses = 2
    chosen = sides(args)
    case = measure(args, chosen)
    print_result("node_loss", [case], timeout_s=args.timeout_s, run_s=args.run_s)
    return int(any(set(outcomes) <= {"broken_start"} for outcomes in case["losses"].values()))


if __name__ == "__main__":
    sys.exit(main())
