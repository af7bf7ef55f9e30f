"""What outcomes of the fault matrix amount to: precision, recall, kinds, times, proofs, false alarms. Pure.

Proven is what was acted on at once. A fault that is only said is no failure. A false proof is one: something was done about a
healthy job, or before the fault struck.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

HOUR_S = 3600.0
Row = dict[str, Any]
"""An outcome, as `harness.Outcome` has it, with the peer's opinion as `peer` if it was asked."""


def score(rows: Iterable[Row]) -> dict[str, Any]:
    """Return all figures of some outcomes; those with a `problem` are counted and left out."""
    everything = list(rows)
    sound = [row for row in everything if not row["problem"]]
    faults = [row for row in sound if not row["negative"]]
    negatives = [row for row in sound if row["negative"]]
    judged = [row for row in sound if row["kind"]]
    exact = [row for row in faults if row["exact"]]
    named = [row for row in judged if not row["negative"]]
    false_alarms = [row for row in judged if row["negative"] or row["early"]]
    hours = sum(row["watched_s"] for row in negatives) / HOUR_S
    return {
        "faults": len(faults),
        "negatives": len(negatives),
        "no_result": len(everything) - len(sound),
        "precision": _part(len(exact), len(judged)),
        "recall": _part(len(exact), len(faults)),
        "kind_accuracy": _part(sum(row["kind_right"] for row in faults), len(faults)),
        "exact_and_kind": _part(sum(row["exact"] and row["kind_right"] for row in faults), len(faults)),
        "action_right": _part(sum(row["action_right"] for row in faults), len(faults)),
        "proven": sum(is_proven(row) for row in faults),
        "proven_share": _part(sum(is_proven(row) for row in faults), len(faults)),
        "false_proofs": sum(is_false_proof(row) for row in everything),
        "missed": len(faults) - len(named),
        "over_evicted_ranks": sum(_healthy(row) for row in named),
        "over_evicted_runs": sum(_healthy(row) > 0 for row in named),
        "suspect_s": spread(row["suspect_s"] for row in named if "slow" not in row["expected"]),
        "verdict_s": spread(row["verdict_s"] for row in named if "slow" not in row["expected"]),
        "since_progress_s": spread(row["since_progress_s"] for row in named if "slow" not in row["expected"]),
        "verdict_slow_s": spread(row["verdict_s"] for row in named if "slow" in row["expected"]),
        "false_alarms": len(false_alarms),
        "watched_hours": round(hours, 4),
        "false_alarms_per_hour": round(len(false_alarms) / hours, 3) if hours else None,
        "torchfrtrace_exact": peer_score(faults),
    }


def is_acted_on(row: Row) -> bool:
    """Whether something was done at once, rightly or not."""
    return row["action"] not in ("", "report")


def is_proven(row: Row) -> bool:
    """Whether a fault was acted on at once."""
    return is_acted_on(row) and not is_false_proof(row)


def is_false_proof(row: Row) -> bool:
    """Whether something was done although nothing was wrong, or not yet."""
    return is_acted_on(row) and (row["negative"] or row["early"])


def _healthy(row: Row) -> int:
    """How many ranks were named that are not at fault."""
    return len(set(row["ranks"]) - set(row["at_fault"]))


def _part(count: int, of: int) -> float | None:
    return round(count / of, 4) if of else None


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, 90th percentile (the value that 90 % do not exceed) and maximum, in the values' unit."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p90 = known[max(0, -(-len(known) * 9 // 10) - 1)]
    return {"median": round(statistics.median(known), 3), "p90": round(p90, 3), "max": round(known[-1], 3)}


def peer_score(faults: Sequence[Row]) -> dict[str, Any] | None:
    """Return how often the peer was exact, ambiguous, wrong and undecided, and how often we were exact on the same runs."""
    asked = [row for row in faults if row.get("peer")]
    if not asked:
        return None
    counts = collections.Counter(row["peer"]["result"] for row in asked)
    parts = {name: counts.get(name, 0) for name in ("exact", "ambiguous", "wrong", "undecided")}
    recall = _part(counts["exact"], len(asked))
    first = sum(row["peer"]["first"] == "exact" for row in asked)
    ours = sum(row["exact"] for row in asked)
    return {"runs": len(asked), **parts, "recall": recall, "first_entry_exact": first, "ours_exact": ours}


def by_case(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return a line per case: how many runs, how many exact, of right kind, judged and proven."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row["number"], []).append(row)
    return [
        {
            "number": number,
            "runs": len(cell),
            "exact": sum(row["exact"] for row in cell),
            "kind_right": sum(row["kind_right"] for row in cell),
            "judged": sum(bool(row["kind"]) for row in cell),
            "proven": sum(is_proven(row) for row in cell),
            "false_proofs": sum(is_false_proof(row) for row in cell),
            "no_result": sum(bool(row["problem"]) for row in cell),
        }
        for number, cell in cells.items()
    ]


def proven_by_kind(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return a line per kind of fault: how many runs, and the share that was proven."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        if not row["problem"] and not row["negative"]:
            cells.setdefault("/".join(row["expected"]), []).append(row)
    counts = ((kind, len(cell), sum(is_proven(row) for row in cell)) for kind, cell in sorted(cells.items()))
    return [
        {"kind": kind, "runs": runs, "proven": proven, "share": _part(proven, runs)} for kind, runs, proven in counts
    ]


def print_proven(name: str, rows: Iterable[Row]) -> None:
    """Print which share of each kind of fault was proven, and the cases of which some were and some not."""
    everything = list(rows)
    for line in proven_by_kind(everything):
        print(f"  {name}: of {line['kind']} {line['proven']} of {line['runs']} proven", flush=True)
    for line in by_case(row for row in everything if not row["problem"] and not row["negative"]):
        if line["proven"]:
            print(f"    case {line['number']}: {line['proven']} of {line['runs']} proven", flush=True)


def print_scores(scores: dict[str, dict[str, Any]]) -> None:
    """Print a table: a line per figure, a column per set of runs."""
    names = list(scores)
    print(f"\n  {'':<30}" + "".join(f"{name:>24}" for name in names))
    for figure in next(iter(scores.values()), {}):
        cells = "".join(f"{shown(scores[name][figure]):>24}" for name in names)
        print(f"  {figure.replace('_', ' '):<30}{cells}", flush=True)


def shown(value: Any) -> str:
    """Return a figure for people."""
    if value is None:
        return "-"
    if isinstance(value, dict) and "p90" in value:
        return f"{value['median']:.1f} / {value['p90']:.1f} / {value['max']:.1f}"
    if isinstance(value, dict):
        return f"{value['exact']} of {value['runs']}, ours {value['ours_exact']}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
