"""The truth of `robust plan` against real runs: short real jobs with faults of its own fault process, and its word on each.

    python bench/plan_real.py --run 18 --seed 900 --results calibration.jsonl
    python bench/plan_real.py --run 50 --seed 1 --results real.jsonl
    python bench/plan_real.py --results real.jsonl --calibration calibration.jsonl --page docs/plan-real.md

The first two run jobs (`plan_real_job.py`; needs root and namespaces) and append what came of each to a file, its journal to a
folder beside it; what is there is not run again, so that either can be stopped at any time. The third holds the second against
plans with times from the first (`plan_real_plan.py`), and writes a page. The last line of its standard output is one JSON object.
What ran last is kept: `--results bench/plan_real_data/jobs.jsonl --calibration bench/plan_real_data/calibration.jsonl`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import host_warmth
from hosts import supported
from plan_real_draw import drawn
from plan_real_held import WITHIN, actions, held, mean_phases, summed
from plan_real_job import came_or_problem
from plan_real_page import page
from plan_real_plan import measured, plan_of, simulated
from plan_real_read import read
from plan_real_words import HORIZON_S, Came
from sidebyside import print_result, unwind_on_sigterm
from soak_page import commit_here, machine_here, today

from robust_run.planning.course import lost

OTHERS = 300
"""Schedules of other seeds that the plan is asked about, too."""


def done_so_far(path: Path) -> dict[int, Came]:
    """Return the results of a file by number; those of trials that went wrong are not there."""
    if not path.exists():
        return {}
    found = [msgspec.json.decode(line, type=Came) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    return {each.job.number: each for each in found if not each.problem}


def read_again(path: Path) -> list[Came]:
    """Return the results of a file in order, with what their journals say; those without one stay as they are."""
    found = [each for _, each in sorted(done_so_far(path).items())]
    for came in found:
        journal = path.with_suffix(".journals") / f"{came.job.number}.jsonl"
        if journal.exists():
            read(journal, came)
    return found


def one(seed: int, number: int, keep: Path) -> Came:
    """Run one job in a folder of its own. `keep`: where its journal goes."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plan-real-") as folder:
        came = came_or_problem(drawn(seed, number), Path(folder), keep)
    came.load, came.took_s = os.getloadavg()[0], time.monotonic() - begun_s
    return came


def run_all(seed: int, numbers: Iterable[int], path: Path, together: int) -> None:
    """Run jobs that have no result yet, each in a process that has imported torch; append each result at once."""
    done = done_so_far(path)
    journals = path.with_suffix(".journals")
    journals.mkdir(exist_ok=True)
    with ProcessPoolExecutor(together, multiprocessing.get_context("spawn")) as pool:
        for doing in as_completed(
            [pool.submit(one, seed, number, journals / f"{number}.jsonl") for number in numbers if number not in done]
        ):
            came = doing.result()
            with path.open("ab") as file:
                file.write(msgspec.json.encode(came) + b"\n")
            say(came)


def say(came: Came) -> None:
    """For people."""
    said = ", ".join(f"{each.name} {each.at_s:.0f} s {each.came}" for each in came.strikes)
    print(
        f"{came.job.number}: ETTR {came.ettr:.3f}, {len(came.attempts)} attempts, {came.actions} | {said} |"
        f" load {came.load:.1f}, {came.took_s:.0f} s {came.problem[:600]}",
        flush=True,
    )


def hold(args: argparse.Namespace) -> None:
    """Hold the jobs of a file against their plans; write the page, and the JSON line."""
    known = measured(read_again(args.calibration))
    all_held = [held(came, known, range(args.seeds)) for came in read_again(args.results)]
    others = [
        lost(
            simulated(Came(job=job, strikes=list(job.strikes)), known, [number])[0],
            plan_of(job, known, HORIZON_S).saving,
            known.times,
        ).ettr
        for number in range(OTHERS)
        for job in [drawn(args.seed + 1, number)]
    ]
    unpaired = OTHERS, statistics.mean(others), statistics.stdev(others) / OTHERS**0.5
    total = summed(all_held)
    where = f"{today()}, commit {args.commit or commit_here()}, {machine_here()}."
    if args.page:
        args.page.write_text(page(all_held, known, where, unpaired), encoding="utf-8")
    case = {
        "case": "plan_real",
        **msgspec.to_builtins(total),
        "within_3_points_in_the_mean": abs(total.off) <= WITHIN,
        "plan_of_other_schedules": {"jobs": OTHERS, "ettr": unpaired[1], "error": unpaired[2]},
        "phases_s": {name: {"real": real_s, "plan": plan_s} for name, real_s, plan_s in mean_phases(all_held)},
        "actions": {name: {"real": real, "plan": plan} for name, (real, plan) in actions(all_held).items()},
        "calibration": msgspec.to_builtins(known),
    }
    print_result("plan_real", [case])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=int, default=0, help="run so many jobs that have no result yet")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seed", type=int, default=1, help="what faults are drawn from (default 1)")
    parser.add_argument("--together", type=int, default=3, help="jobs at a time (default 3)")
    parser.add_argument("--results", type=Path, required=True, help="file of results, a line of JSON each")
    parser.add_argument(
        "--calibration", type=Path, help="results of calibration jobs: hold the others against their plans"
    )
    parser.add_argument("--seeds", type=int, default=20, help="seeds that draw the plan's durations (default 20)")
    parser.add_argument("--page", type=Path, help="write the results here")
    parser.add_argument("--commit", default="", help="what the jobs ran (default: what is checked out)")
    return parser.parse_args()


def main() -> int:
    args = parse()
    unwind_on_sigterm()
    if args.run:
        if reason := supported():
            raise SystemExit(reason)
        os.environ[host_warmth.WANTED] = "yes"
        run_all(args.seed, range(args.first, args.first + args.run), args.results, args.together)
    if args.calibration:
        hold(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
