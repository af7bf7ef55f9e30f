"""The truth of `robust plan` against real runs: short real jobs with faults of its own fault process, and its word on each.

    python bench/plan_real.py --calibrate 8 --results /tmp/calibration.jsonl
    python bench/plan_real.py --jobs 50 --calibration /tmp/calibration.jsonl --results /tmp/real.jsonl --page docs/plan-real.md
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import host_warmth
from plan_real_draw import drawn
from plan_real_job import came_or_problem
from plan_real_words import Came
from sidebyside import unwind_on_sigterm


def done_so_far(path: Path) -> dict[int, Came]:
    """Return the results of a file by number; those of trials that went wrong are not there."""
    if not path.exists():
        return {}
    found = [msgspec.json.decode(line, type=Came) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    return {each.job.number: each for each in found if not each.problem}


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
        for doing in as_completed([pool.submit(one, seed, number, journals / f"{number}.jsonl") for number in numbers if number not in done]):
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--results", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    args = parse()
    unwind_on_sigterm()
    os.environ[host_warmth.WANTED] = "yes"
    run_all(args.seed, range(args.first, args.first + args.jobs), args.results, args.together)
    return 0


if __name__ == "__main__":
    sys.exit(main())
