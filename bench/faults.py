"""How good verdicts are: the fault matrix of `tests/faults`, each fault many times, beside torch's own `torchfrtrace`.

    python bench/faults.py --seeds 6 --worlds 4,8 --minutes 120 --results /tmp/faults.jsonl
    python bench/faults.py --only tuning
    python bench/faults.py --cases 1,7,18,H3 --worlds 8 --layouts tp_dp_pp,fsdp

A run is a case in one parallel layout, world, position of the culprit and seed. Of the runs of a case, world and seed one is
drawn (--per-cell), or all are made (--every). They come in a shuffled order, so what --limit or --minutes leaves undone does not
change what is measured. With --results every outcome is appended to a file, and runs that are in it are not made again.

TUNING runs are those that rules and thresholds may be looked at with; all others are HELD-OUT: see `tests/faults/matrix.py`.
Verdict and action are scored apart: what is proven is acted on at once, everything else is said and given torch's own time. To
ask the peer the program keeps a thread of its own, which might break a circle of waits: circles are acted on with --no-peer only.
The share that is proven is told by kind of fault and by case; what is not is no failure. A false proof is one: something was done
about a negative, or before the fault struck.
Precision: of all verdicts, also on negatives, those that name exactly the ranks at fault. Recall: of all faults, those.
Times count from the moment the fault strikes; median, 90th percentile, maximum; stragglers, which need rounds of measuring,
apart. False alarms are verdicts on negatives or before a fault struck. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "faults"))

import fault_peer
from fault_score import Row, by_case, is_false_proof, print_proven, print_scores, proven_by_kind, score
from harness import Settings, try_out
from matrix import ALL, CASES, Run, every_run, sample
from sidebyside import numbers, print_result, unwind_on_sigterm

SETS = ("tuning", "held-out")


def chosen_runs(args: argparse.Namespace) -> list[Run]:
    """The runs to make, in their order."""
    wanted = set(args.cases.split(",")) if args.cases else {case.number for case in CASES}
    unknown = wanted - {case.number for case in CASES}
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))} in the matrix: {' '.join(c.number for c in CASES)}")
    cases = tuple(case for case in CASES if case.number in wanted)
    runs = list(every_run(cases, tuple(args.worlds), tuple(args.layouts.split(",")), args.seeds))
    if args.only:
        runs = [run for run in runs if set_of(run) == args.only]
    return sample(runs, len(runs) if args.every else args.per_cell)[: args.limit]


def set_of(run: Run) -> str:
    """The name of the set a run is in."""
    return SETS[0] if run.tuning else SETS[1]


def why_not(run: Run) -> str:
    """Why a run cannot be made here; empty if it can."""
    if run.case.hosts == 1:
        return ""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from hosts import supported

    return supported()


def one_run(run: Run, settings: Settings) -> Row:
    """Make a run, ask the peer, and clean up."""
    with tempfile.TemporaryDirectory(prefix="robust-faults-") as folder:
        outcome = try_out(run, Path(folder), settings)
        row: Row = json.loads(outcome.to_json())
        if outcome.dumps and not outcome.negative and not outcome.problem and "slow" not in run.case.kinds:
            row["peer"] = fault_peer.ask(outcome.dumps, outcome.at_fault).to_dict()
    row["line"] = outcome.line()
    return row


def done_before(path: str | None) -> dict[str, Row]:
    """The outcomes in a file of results, by run."""
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.endswith("}\n")]
    return {row["run"]: row for row in rows}


def make_all(runs: list[Run], settings: Settings, args: argparse.Namespace) -> list[Row]:
    """Make all runs that time allows, one at a time; say what each came to."""
    before = done_before(args.results)
    rows = [before[run.name] for run in runs if run.name in before]
    todo = [run for run in runs if run.name not in before]
    print(f"{len(runs)} runs chosen, {len(rows)} are in the file of results", flush=True)
    end_at_s = time.monotonic() + args.minutes * 60
    for number, run in enumerate(todo, 1):
        if time.monotonic() > end_at_s:
            print(f"--minutes {args.minutes:g} are over; {len(todo) - number + 1} runs not made", flush=True)
            break
        reason = why_not(run)
        if reason:
            print(f"  [{number}/{len(todo)}] left out: {run.name}: {reason}", flush=True)
            continue
        row = one_run(run, settings)
        rows.append(row)
        opinion = f" | torchfrtrace: {row['peer']['result']} {row['peer']['ranks']}" if row.get("peer") else ""
        print(f"  [{number}/{len(todo)}] {row['line']}{opinion}", flush=True)
        if args.results:
            with open(args.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6, help="so many, from 0; tuning runs have seed 0 (default 6)")
    parser.add_argument("--worlds", type=numbers, default=[4, 8], help="numbers of ranks, 4 or 8 (default 4,8)")
    parser.add_argument("--layouts", default=",".join(ALL), help=f"default {','.join(ALL)}")
    parser.add_argument("--cases", default="", help="numbers of cases, like 1,18,H3 (default: all)")
    parser.add_argument("--only", choices=SETS, help="this set alone")
    parser.add_argument("--per-cell", type=int, default=1, help="runs drawn of a case, world, seed and set (default 1)")
    parser.add_argument("--every", action="store_true", help="every layout and position, days of runs")
    parser.add_argument("--limit", type=int, help="at most so many runs")
    parser.add_argument("--minutes", type=float, default=240.0, help="start nothing new after so long (default 240)")
    parser.add_argument("--slow-round", type=float, default=2.0, help="seconds of a straggler round (default 2)")
    parser.add_argument("--negative-s", type=float, default=40.0, help="watch a negative for so long (default 40)")
    parser.add_argument("--results", help="append outcomes to this file, and leave out runs that are in it")
    parser.add_argument("--no-peer", action="store_true", help="do not ask torchfrtrace")
    args = parser.parse_args()
    if not set(args.worlds) <= {4, 8}:
        parser.error(f"--worlds {args.worlds}: the layouts are made for 4 and 8 ranks")
    return args


def main() -> None:
    args = parse()
    unwind_on_sigterm()
    reason = "--no-peer" if args.no_peer else fault_peer.available()
    if reason:
        print(f"torchfrtrace is not asked: {reason}", flush=True)
    settings = Settings(slow_round_s=args.slow_round, negative_s=args.negative_s, dumps=not reason)
    rows = make_all(chosen_runs(args), settings, args)
    groups = {name: [row for row in rows if row["tuning"] == (name == SETS[0])] for name in SETS}
    scores: dict[str, dict[str, Any]] = {name: score(group) for name, group in groups.items() if group}
    print_scores(scores)
    for name in scores:
        print_proven(name, groups[name])
    for row in filter(is_false_proof, rows):
        print(f"  FALSE PROOF {row['line']}", flush=True)
    wrong = [row for row in rows if row["problem"] or row["early"] or row["negative"] == bool(row["kind"])]
    wrong += [
        row for row in rows if row not in wrong and not row["negative"] and not (row["exact"] and row["kind_right"])
    ]
    for row in wrong:
        print(f"  {row['line']}", flush=True)
    cases = [
        {"set": name, **score_, "proven_by_kind": proven_by_kind(groups[name]), "by_case": by_case(groups[name])}
        for name, score_ in scores.items()
    ]
    print_result("faults", cases, slow_round_s=args.slow_round, runs=len(rows))


if __name__ == "__main__":
    main()
