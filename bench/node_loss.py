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
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hosts import Cluster, Host, supported
from power_loss import JournalSoFar, in_turns, is_unmeasured, notes, print_losses, wait, work_until_loss
from sidebyside import (
    BASELINE,
    JOB_VARIABLE,
    OURS,
    SETTINGS_OF_LAUNCHERS,
    TALKER,
    Figures,
    add_common_options,
    print_result,
    sides,
    unwind_on_sigterm,
)

START_S = 60.0
"""A job that takes longer to get going is broken."""
LOOK_EVERY_S = 0.005
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
        return notes(self._folder, name, after_s)

    def journal(self) -> JournalSoFar:
        """What robust-run has put on record so far."""
        return JournalSoFar(self._folder / "runs" / "b" / "journal.jsonl")

    def output(self) -> str:
        """The last lines of what was said on the hosts."""
        return "\n".join(
            line
            for path in sorted(self._folder.glob("hosts-*/*/*launcher.*"))
            for line in path.read_text().splitlines()[-8:]
        )


def lose_one(side: str, args: argparse.Namespace, number: int, figures: Figures) -> str:
    """One job, one power loss. Returns what came of it: recovered, nothing_happened or broken_start."""
    with tempfile.TemporaryDirectory(prefix="node-loss-") as name, Cluster(3, Path(name)) as cluster:
        run = Run(side, args, cluster, Path(name))
        for host in (cluster[0], cluster[1]):
            run.start(host)
        ready = wait(lambda: len(run.notes("fifth_step")) == 2, START_S, LOOK_EVERY_S)
        run.start(cluster[2])
        if ready and side == OURS:
            ready = wait(lambda: len(run.journal().events("standby_ready")) >= 3, START_S, LOOK_EVERY_S)
        if not ready:
            print(f"{side}: the job did not start\n{run.output()}", flush=True)
            return "broken_start"
        work_until_loss(args.run_s, number)
        lost_s = time.monotonic()
        cluster[1].power_off()
        if not wait(lambda: len(run.notes("first_all_reduce", lost_s)) == 2, args.timeout_s, LOOK_EVERY_S):
            return "something_else_happened" if run.notes("first_line", lost_s) else "nothing_happened"
        durations = {
            f"{note}_last_rank_s": max(run.notes(note, lost_s).values()) - lost_s
            for note in ("first_line", "first_all_reduce")
        }
        if side == OURS:
            journal = run.journal()
            verdict_s, ordered_s = journal.ordered_at_s("record_incident")[0], journal.ordered_at_s("start_attempt")[1]
            durations = {"verdict_s": verdict_s - lost_s, "workers_ordered_s": ordered_s - lost_s, **durations}
        figures.add(side, durations)
        return "recovered"


def measure(args: argparse.Namespace, chosen: list[str]) -> dict[str, Any]:
    """All losses, the sides in turns, and their table. Returns the case for the JSON line."""
    figures = Figures()
    deadline_s = time.monotonic() + args.limit_s
    outcomes = in_turns(args, chosen, deadline_s, lambda side, number: lose_one(side, args, number, figures))
    summary = figures.summary()
    print_losses("seconds from the power loss of one of two nodes", summary, outcomes, COLUMNS, LABELS)
    return {
        "case": "node_loss",
        "losses": {side: dict(collections.Counter(came)) for side, came in outcomes.items()},
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
    return int(is_unmeasured(case["losses"]))


if __name__ == "__main__":
    sys.exit(main())
