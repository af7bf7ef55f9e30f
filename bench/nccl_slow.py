"""How well what is slow inside NCCL is found: Mycroft's seven faults, and hours in which nothing is wrong, in virtual time.

    python bench/nccl_slow.py [--seeds 20] [--hours 24] [--set held-out] [--nodes 2]

Faults and harmless things come from a model (tests/tracer/nccl/slow_world.py) that knows nothing of the rules. Seeds from 2000
on are held out: thresholds were chosen with those below. Time to a verdict counts from the moment the fault strikes. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "bench")]

from sidebyside import print_result  # noqa: E402
from tracer.nccl.slow_play import Heard, play  # noqa: E402
from tracer.nccl.slow_run import faulty, harmless  # noqa: E402
from tracer.nccl.slow_world import FAULTS, HARMLESS, HarmlessName  # noqa: E402

FIRST_HELD_OUT = 2000
AIM_S = 15.0


def share_of(values: list[float], share: float) -> float:
    """A quantile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def judge_faults(seeds: range, verbose: bool, nodes: int) -> tuple[list[dict[str, Any]], list[float]]:
    """Each fault with each seed; and how long after it struck each was told."""
    cases: list[dict[str, Any]] = []
    all_after: list[float] = []
    for name in FAULTS:
        heards: list[Heard] = []
        for seed in seeds:
            heard = play(faulty(name, seed, nodes=nodes))
            heards.append(heard)
            if verbose and not heard.is_right:
                print(f"    {name} {seed}: {heard.fault and heard.fault.sentence}; {heard.case.fault}")
        after = [heard.after_s for heard in heards if heard.is_right and heard.after_s is not None]
        all_after += after
        case: dict[str, Any] = {
            "fault": name,
            "runs": len(heards),
            "right": sum(heard.is_right for heard in heards),
            "silent": sum(heard.fault is None for heard in heards),
            "early": sum(heard.is_early for heard in heards),
            "median_s": share_of(after, 0.5),
            "p90_s": share_of(after, 0.9),
            "most_s": max(after, default=float("nan")),
        }
        cases.append(case)
        print(
            "  "
            + " ".join(
                f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in case.items()
            ),
            flush=True,
        )
    return cases, all_after


def judge_harmless(
    first_seed: int, hours: float, names: Sequence[HarmlessName], verbose: bool, nodes: int
) -> list[dict[str, Any]]:
    """Hours of harmless things, as many of each, half an hour a seed."""
    cases = []
    each = hours / len(names)
    for name in names:
        left_s, false, windows, everybody = each * 3600, 0, 0, 0
        first = first_seed
        while left_s > 0:
            heard = play(harmless(name, first, for_s=min(1800.0, left_s), nodes=nodes))
            first, left_s = first + 1, left_s - 1800.0
            false += heard.told
            windows += heard.windows
            everybody += heard.everybody
            if verbose and heard.fault is not None:
                print(f"    {name} {first - 1}: {heard.fault.sentence}")
        case = {"harmless": name, "hours": each, "false": false, "looks_at_all": everybody / max(windows, 1)}
        cases.append(case)
        print(
            "  "
            + " ".join(
                f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in case.items()
            ),
            flush=True,
        )
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="of each fault (default 20)")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated, of harmless things together (default 24)")
    parser.add_argument("--harmless", choices=HARMLESS, nargs="+", default=HARMLESS, help="these things (default: all)")
    parser.add_argument("--set", choices=("tuning", "held-out"), default="held-out")
    parser.add_argument("--wrong", action="store_true", help="say what was wrong")
    parser.add_argument("--nodes", type=int, default=0, help="of each job (default: 3, 4 or 6, as the seed says)")
    args = parser.parse_args()
    first = FIRST_HELD_OUT if args.set == "held-out" else 0
    began_s = time.process_time()
    faults, after = judge_faults(range(first, first + args.seeds), args.wrong, args.nodes)
    quiet = judge_harmless(first, args.hours, args.harmless, args.wrong, args.nodes)
    runs, right = sum(case["runs"] for case in faults), sum(case["right"] for case in faults)
    print(
        f"{right} of {runs} right; {sum(case['false'] for case in quiet)} false in {args.hours:g} h; "
        f"{time.process_time() - began_s:.0f} s CPU"
    )
    times = {
        "median_s": share_of(after, 0.5),
        "p90_s": share_of(after, 0.9),
        "most_s": max(after, default=float("nan")),
    }
    in_time = sum(after_s <= AIM_S for after_s in after)
    print(f"told after {times}; {in_time} within {AIM_S:g} s")
    print_result(
        "nccl_slow", [*faults, *quiet], set=args.set, right=right, runs=runs, hours=args.hours, in_time=in_time, **times
    )


if __name__ == "__main__":
    main()
