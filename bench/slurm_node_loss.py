"""How long a Slurm job stands still when one of its nodes loses power: robust-run with a spare, and the usual torchrun recipe.

    python bench/slurm_node_loss.py --losses 4
    python bench/slurm_node_loss.py --lose first --slurmd-timeout-s 300 --timeout-s 900 --losses 1

Both run on a real Slurm of three nodes on this machine (tests/slurm_cluster.py; needs root, slurmctld, slurmd, munge), a
fresh one for each loss. The recipe is what sites document: `sbatch --requeue`, and `srun torchrun` on two nodes; the third
node is idle, so that the job can start again on it. robust-run is submitted by `robust slurm submit` with three nodes, of which
one stands by. Same training: a loop of gloo all_reduce that saves every ten steps and goes on from there. Two cases: the lost
node is the second of the job (`other`), or the first (`first`), which has the batch script, and the controller or torchrun's
rendezvous.

How long the recipe takes is up to the site: Slurm notices a dead node after SlurmdTimeout (300 s by default), and starts a
requeued job after cred_expire (120 s) at the earliest. Here both are short, 10 s and 5 s, unless told otherwise: on a real
site the recipe takes minutes. Durations count from just before the power goes to the first all_reduce of the last rank. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from power_loss import JournalSoFar, in_turns, is_unmeasured, notes, print_losses, wait, work_until_loss
from sidebyside import (
    BASELINE,
    JOB_VARIABLE,
    MARKS,
    OURS,
    SETTINGS_OF_LAUNCHERS,
    Figures,
    add_common_options,
    print_result,
    sides,
    unwind_on_sigterm,
)
from slurm_cluster import SlurmCluster, why_not
from slurm_conf import Knobs

START_S = 120.0
"""A job that takes longer to get going is broken."""
LOOK_EVERY_S = 0.01
SAVE_EVERY = 10
AIM_S = 5.0
COLUMNS = {"first_line_s": "first line", "resumed_s": "training goes on", "steps_lost": "steps lost"}
LABELS = {BASELINE: "sbatch --requeue, srun torchrun", OURS: "robust slurm submit, one standby"}

WORKER = f"""import time; T0 = time.monotonic()
{MARKS}
mark("first_line", T0)
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
folder = os.environ["SIDEBYSIDE_JOB"]
rank = dist.get_rank()
try:
    step = int(open(folder + "/checkpoint").read())
except FileNotFoundError:
    step = 0
first = step + 1
while True:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    step += 1
    if step == first:
        mark("first_all_reduce", time.monotonic())
        if rank == 0:
            with open(folder + "/resumed", "a") as file:
                file.write(str(first) + "\\n")
    if step == first + 4:
        mark("fifth_step", time.monotonic())
    if rank == 0:
        with open(folder + "/made", "w") as file:
            file.write(str(step))
        if step % {SAVE_EVERY} == 0:
            with open(folder + "/checkpoint.new", "w") as file:
                file.write(str(step))
            os.rename(folder + "/checkpoint.new", folder + "/checkpoint")
    time.sleep(0.02)
"""

RECIPE = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {torchrun} --nnodes 2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" \\
    --rdzv-endpoint "$head:29400" {script}
"""


class Run:
    """One job on a fresh Slurm, and what its workers noted."""

    def __init__(self, side: str, args: argparse.Namespace, slurm: SlurmCluster, folder: Path) -> None:
        self._side = side
        self._args = args
        self._slurm = slurm
        self._folder = folder
        self._script = folder / "worker.py"
        self._script.write_text(WORKER, encoding="utf-8")
        self._job = 0

    def submit(self) -> None:
        """Put the job into the queue."""
        env = {"GLOO_SOCKET_IFNAME": "eth0", JOB_VARIABLE: str(self._folder), "ROBUST_SHARED_RUNS": "1"}
        output = f"--output={self._folder / 'output.log'}"
        if self._side == BASELINE:
            text = RECIPE.format(torchrun=os.path.abspath(self._args.torchrun), script=self._script)
            self._job = self._slurm.sbatch(text, output, f"--chdir={self._folder}", env=env)
            return
        launcher = Path(os.path.abspath(self._args.robust_run))
        robust = [str(launcher.with_name("robust")), "slurm", "submit", "-N3", output]
        command = [str(launcher), "--standby", "1", "--log-dir", str(self._folder / "runs"), str(self._script)]
        said = self._slurm.run(*robust, "--", *command, env=env, cwd=self._folder)
        self._job = int(said.split()[2])

    def nodes(self) -> list[str]:
        """The nodes that work, the first of the job first: with a standby, which those are is the controller's choice."""
        if self._side == BASELINE:
            hosts = self._slurm.job(self._job)["NodeList"]
            return self._slurm.run("scontrol", "show", "hostnames", hosts).split()
        journal = self._journal()
        names = {event["node"]["id"]: event["node"]["name"] for event in journal.events("node_joined")}
        return sorted(names[event["node"]] for event in journal.events("attempt_started"))

    def _journal(self) -> JournalSoFar:
        return JournalSoFar(self._folder / f"runs/slurm-{self._job}.0/journal.jsonl")

    def is_ready(self) -> bool:
        """Whether all ranks work, the standby stands by, and somebody else could lead."""
        if len(self.notes("fifth_step")) < 2 or self._side == BASELINE:
            return len(self.notes("fifth_step")) == 2
        joined = len(self._journal().events("node_joined"))
        return joined == 3 and len(self._slurm.running("robust_run.launcher.start.controller_process")) >= 2

    def notes(self, name: str, after_s: float = 0.0) -> dict[int, float]:
        """When each rank first noted something after a moment."""
        return notes(self._folder, name, after_s)

    def number(self, name: str) -> int:
        """The last number in a file of the workers."""
        return int((self._folder / name).read_text().split()[-1])

    def output(self) -> str:
        """The last lines of what the job said."""
        path = self._folder / "output.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-12:]) if path.exists() else "(nothing)"


def lose_one(side: str, lose: str, args: argparse.Namespace, number: int, figures: Figures) -> str:
    """One job, one power loss. Returns what came of it: recovered, never or broken_start."""
    knobs = Knobs(slurmd_timeout_s=args.slurmd_timeout_s, cred_expire_s=args.cred_expire_s)
    with tempfile.TemporaryDirectory(prefix="loss-") as name, SlurmCluster(Path(name), 3, knobs) as slurm:
        folder = Path(name) / "job"
        folder.mkdir()
        run = Run(side, args, slurm, folder)
        run.submit()
        if not wait(run.is_ready, START_S, LOOK_EVERY_S):
            print(f"{side}: the job did not start\n{run.output()}\n{slurm.logs()}", flush=True)
            return "broken_start"
        work_until_loss(args.run_s, number)
        lost = run.nodes()[0 if lose == "first" else 1]
        lost_s = time.monotonic()
        slurm[lost].power_off()
        made = run.number("made")
        if not wait(lambda: len(run.notes("first_all_reduce", lost_s)) == 2, args.timeout_s, LOOK_EVERY_S):
            print(f"{side}: not resumed\n{run.output()}", flush=True)
            return "never"
        figures.add(
            side,
            {
                "first_line_s": max(run.notes("first_line", lost_s).values()) - lost_s,
                "resumed_s": max(run.notes("first_all_reduce", lost_s).values()) - lost_s,
                "steps_lost": float(made + 1 - run.number("resumed")),
            },
        )
        return "recovered"


def measure(lose: str, args: argparse.Namespace, chosen: list[str], deadline_s: float) -> dict[str, Any]:
    """All losses of one case, the sides in turns, and their table. Returns the case for the JSON line."""
    figures = Figures()
    outcomes = in_turns(
        args, chosen, deadline_s, lambda side, number: lose_one(side, lose, args, number, figures), f"{lose}, "
    )
    summary = figures.summary()
    print_losses(f"seconds from the power loss of the {lose} node", summary, outcomes, COLUMNS, LABELS)
    ours = summary.get("resumed_s", {}).get(OURS)
    if "ratio" in summary.get("resumed_s", {}):
        print(f"  robust-run / recipe: {summary['resumed_s']['ratio']:.3f}", flush=True)
    return {
        "case": f"lose_{lose}",
        "outcomes": outcomes,
        "figures": summary,
        "aim_s": AIM_S,
        "aim_met": ours is not None and ours["median"] <= AIM_S,
    }


def main() -> int:
    """Run the bench. Returns 1 if a side could not be measured at all."""
    parser = argparse.ArgumentParser(description="A node of a Slurm job loses power: robust-run and the usual recipe.")
    parser.add_argument("--losses", type=int, default=3, help="losses to try on each side in each case")
    parser.add_argument("--lose", choices=("other", "first", "both"), default="both", help="which node")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="a job that takes longer never recovers")
    parser.add_argument("--run-s", type=float, default=2.0, help="how long a job works before the loss, at least")
    parser.add_argument(
        "--slurmd-timeout-s", type=int, default=10, help="the site's SlurmdTimeout; Slurm's default: 300"
    )
    parser.add_argument("--cred-expire-s", type=int, default=5, help="the site's cred_expire; Slurm's default: 120")
    parser.add_argument("--quick", action="store_true", help="one loss, of the second node")
    add_common_options(parser, limit_s=1800)
    args = parser.parse_args()
    unwind_on_sigterm()
    if reason := why_not():
        raise SystemExit(reason)
    for name in [name for name in os.environ if name.startswith((*SETTINGS_OF_LAUNCHERS, "SLURM", "SBATCH_"))]:
        del os.environ[name]
    if args.quick:
        args.losses, args.lose = 1, "other"
    chosen = sides(args)
    deadline_s = time.monotonic() + args.limit_s
    cases = [
        measure(lose, args, chosen, deadline_s)
        for lose in (("other", "first") if args.lose == "both" else (args.lose,))
    ]
    print_result("slurm_node_loss", cases, slurmd_timeout_s=args.slurmd_timeout_s, cred_expire_s=args.cred_expire_s)
    return int(any(is_unmeasured(case["outcomes"]) for case in cases))


if __name__ == "__main__":
    sys.exit(main())
