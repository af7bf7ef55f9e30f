"""Faulty machines from host metrics: detectors against each other on generated fleets.

    python bench/outliers.py --stretches 24               what a job feeds: planted degradations and healthy stretches
    python bench/outliers.py healthy --hours 6            what a healthy job would do in hours (with --on-outlier evict)
    python bench/outliers.py tune --stretches 30          choose each detector's limits (tuning seeds)
    python bench/outliers.py judge --stretches 150        judge them, on held-out seeds
    python bench/outliers.py ablate --stretches 60        the default with one rule changed at a time
    python bench/outliers.py time                         one call, at 10, 100 and 1,500 machines
    python bench/outliers.py judge --only spread --stretches 600

What a job feeds (`live`, `healthy`) has the metrics that nodes tell of themselves, and goes the way that it goes in a job, from a
node's heartbeat to what `--on-outlier` makes of it. The others compare detectors on the metrics of Minder.

A stretch is up to 15 minutes of one fleet, a reading a second; half of them have a fault, drawn by the paper's rates. Tuning
seeds begin at 0, held-out seeds at 1,000,000. A fault is found if its machine is named after its onset and before the job ends;
every other verdict is a false one, also those on innocent neighbours, and several in one stretch count several times.
The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from outlier_contenders.lstm_vae import LstmVae
from outlier_contenders.pairwise import WINDOW, PairwiseDetector, Scale
from outlier_contenders.plain import PlainDetector
from outlier_contenders.ranks import RankDetector
from outlier_contenders.together import TogetherDetector
from outlier_fleets.faults import make_stretch
from outlier_fleets.in_jobs import SMALL, healthy, live
from outlier_fleets.types import Stretch
from sidebyside import print_result

from robust_run.health.outliers import continuity
from robust_run.health.outliers.types import Distances, OutlierLimits, Reading, WatchedFleet
from robust_run.health.outliers.watch import SpreadDetector

Make = Callable[[Stretch | None], Any]
SIZES = (8, 16, 32, 64, 128, 256)
HELD_OUT = 1_000_000
TRAINING = 500_000
APART = (1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 25.0, 40.0)
HOLDS = (1.0,)
PAPER = "lstm-vae, as published"
PAPER_HOLD_S = 240.0
#: What `tune` said: (apart, hold_factor).
TUNED: dict[str, tuple[float, float]] = {
    "spread": (4.0, 1.0),
    "zscore": (3.0, 1.0),
    "ranks": (14.0, 1.0),
    "mahalanobis": (3.0, 1.0),
    "pca": (2.0, 1.0),
    "pairwise": (25.0, 1.0),
    "lstm-vae": (25.0, 1.0),
    PAPER: (6.0, 1.0),
}


#: The default's limits, and others that differ in one.
ABLATIONS = {
    "none": OutlierLimits(),
    "holds a tenth as long": OutlierLimits(hold_factor=0.1),
    "holds half as long": OutlierLimits(hold_factor=0.5),
    "holds twice as long": OutlierLimits(hold_factor=2.0),
    "apart from 3 spreads on": OutlierLimits(apart=3.0),
    "apart from 6 spreads on": OutlierLimits(apart=6.0),
    "neighbours accused too": OutlierLimits(farthest_share=0.0),
    "crowds accused too": OutlierLimits(crowd_share=1.0),
    "families add up": OutlierLimits(families_add=True),
}


@dataclass
class Score:
    """What came of one detector with one setting."""

    found: int = 0
    missed: int = 0
    false: int = 0
    false_healthy: int = 0
    healthy_machine_days: float = 0.0
    delays_s: list[float] = field(default_factory=list)
    missed_kinds: Counter[str] = field(default_factory=Counter)
    false_metrics: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        """Return the figures."""
        precision = self.found / max(1, self.found + self.false)
        recall = self.found / max(1, self.found + self.missed)
        delays = np.percentile(self.delays_s, [10, 50, 90]) if self.delays_s else [float("nan")] * 3
        return {
            "precision": round(precision, 3),
            "recall": round(recall, 3),
            "f1": round(2 * precision * recall / max(precision + recall, 1e-9), 3),
            "false_in_healthy": self.false_healthy,
            "healthy_machine_days": round(self.healthy_machine_days, 1),
            "false_per_machine_day": round(self.false_healthy / max(self.healthy_machine_days, 1e-9), 4),
            "delay_s_p10_p50_p90": [round(float(each), 1) for each in delays],
        }


class Ours:
    """Our continuity, one setting."""

    def __init__(self, limits: OutlierLimits) -> None:
        self.limits = limits

    def begin(self, fleet: WatchedFleet) -> Any:
        """Return the state before the first reading."""
        return continuity.begin(fleet)

    def advance(
        self, state: Any, fleet: WatchedFleet, reading: Reading, seen: Distances
    ) -> tuple[Any, list[tuple[str, str]]]:
        """Return the next state, and who is named by which metric."""
        state, verdicts = continuity.advance(state, fleet, reading, seen, self.limits)
        return state, [(verdict.machine, verdict.metric) for verdict in verdicts]


class Published:
    """The paper's: per metric, in its order, the same machine the farthest and over the threshold for four minutes."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def begin(self, fleet: WatchedFleet) -> Any:
        """Return the state before the first reading."""
        return [(-1, 0.0)] * len(fleet.metrics), frozenset()

    def advance(
        self, state: Any, fleet: WatchedFleet, reading: Reading, seen: Distances
    ) -> tuple[Any, list[tuple[str, str]]]:
        """Return the next state, and who is named by which metric."""
        del reading
        runs, said = state
        strength = np.nan_to_num(np.abs(seen.spreads))
        following, named = [], []
        for column, (machine, lasted_s) in enumerate(runs):
            farthest = int(strength[:, column].argmax())
            if strength[farthest, column] < self.threshold:
                farthest = -1
            lasted_s = lasted_s + fleet.interval_s if farthest == machine else 0.0
            following.append((farthest, lasted_s))
            if farthest >= 0 and lasted_s >= PAPER_HOLD_S and farthest not in said:
                said |= {farthest}
                named.append((fleet.machines[farthest], fleet.metrics[column].name))
        return (following, said), named


def stretches(count: int, first_seed: int, sizes: tuple[int, ...]) -> Iterator[Stretch]:
    for number in range(count):
        for faulty in (True, False):
            yield make_stretch(first_seed + number, machines=sizes[number % len(sizes)], faulty=faulty)


def judge(stretch: Stretch, detector: Any, rules: dict[Any, Any], scores: dict[Any, Score]) -> None:
    """Run one detector over one stretch, and all rules over what it says."""
    fleet, fault = stretch.fleet, stretch.fault
    seen_state = detector.begin(fleet)
    states = {name: rule.begin(fleet) for name, rule in rules.items()}
    found: set[Any] = set()
    for second, values in enumerate(stretch.values):
        reading = Reading(float(second), values.astype(np.float64))
        seen_state, seen = detector.step(seen_state, fleet, reading)
        for name, rule in rules.items():
            states[name], verdicts = rule.advance(states[name], fleet, reading, seen)
            for machine, metric in verdicts:
                score = scores[name]
                if fault is not None and machine == fault.machine and second >= fault.onset_s:
                    if name not in found:
                        score.delays_s.append(second - fault.onset_s)
                    found.add(name)
                else:
                    score.false += 1
                    score.false_healthy += fault is None
                    score.false_metrics[metric] += 1
    for name in rules:
        score = scores[name]
        if fault is None:
            score.healthy_machine_days += len(stretch.values) * len(fleet.machines) / 86400
        else:
            score.kinds[fault.kind] += 1
            score.found += name in found
            score.missed += name not in found
            if name not in found:
                score.missed_kinds[fault.kind + ("" if fault.signs else " (no sign)")] += 1


def trained() -> tuple[Scale, LstmVae, float]:
    """Return the scale of healthy training fleets, and the models trained on their windows."""
    windows, fleets = [], []
    random = np.random.default_rng(0)
    for number in range(24):
        stretch = make_stretch(TRAINING + number, machines=32, faulty=False)
        fleets.append(stretch)
    fleet = fleets[0].fleet
    raw = Scale(np.zeros(len(fleet.metrics)), np.ones(len(fleet.metrics)))
    scaled = [raw.apply(fleet, stretch.values.astype(np.float64)) for stretch in fleets]
    low = np.min([np.nanmin(each, axis=(0, 1)) for each in scaled], axis=0)
    high = np.max([np.nanmax(each, axis=(0, 1)) for each in scaled], axis=0)
    scale = Scale(low, high)
    for each in scaled:
        each = np.nan_to_num((each - low) / (high - low))
        for start in random.integers(0, len(each) - WINDOW, 40):
            windows.append(each[start : start + WINDOW].transpose(1, 2, 0))  # noqa: PERF401
    model = LstmVae(len(fleet.metrics))
    error = model.train(np.concatenate(windows), steps=1500)
    return scale, model, error


SIMPLE: dict[str, Make] = {
    "spread": lambda _: SpreadDetector(),
    "zscore": lambda _: PlainDetector(),
    "ranks": lambda _: RankDetector(),
    "mahalanobis": lambda _: TogetherDetector("mahalanobis"),
    "pca": lambda _: TogetherDetector("pca"),
}
LEARNT = ("pairwise", "lstm-vae", PAPER)


def learnt() -> tuple[dict[str, Make], float]:
    """Return the detectors that need training data, and the models' error."""
    scale, model, error = trained()
    return {
        "pairwise": lambda _: PairwiseDetector("pairwise", scale),
        "lstm-vae": lambda stretch: PairwiseDetector("lstm-vae", scale, _ahead(scale, model, stretch)),
        PAPER: lambda stretch: PairwiseDetector(PAPER, scale, _ahead(scale, model, stretch), by_role=False),
    }, error


def _ahead(scale: Scale, model: LstmVae, stretch: Stretch | None) -> Any:
    return model if stretch is None else Ahead(scale, model, stretch)


class Ahead:
    """What a model makes of all windows of a stretch, computed at once: the same numbers, many times faster."""

    def __init__(self, scale: Scale, model: LstmVae, stretch: Stretch) -> None:
        scaled = scale.apply(stretch.fleet, stretch.values.astype(np.float64))
        scaled[0] = np.nan_to_num(scaled[0])
        for second in range(1, len(scaled)):
            scaled[second] = np.where(np.isnan(scaled[second]), scaled[second - 1], scaled[second])
        self._windows = np.lib.stride_tricks.sliding_window_view(scaled, WINDOW, axis=0)
        self._model = model
        self._made: Any = ()
        self._next = 0

    def __call__(self, points: Any) -> Any:
        """Return the next window's reconstruction, as the model would."""
        del points
        chunk = 64
        if self._next % chunk == 0:
            windows = self._windows[self._next : self._next + chunk]
            self._made = self._model(np.array(windows).reshape(-1, *windows.shape[2:])).reshape(windows.shape)
        self._next += 1
        return self._made[(self._next - 1) % chunk]


def rule_for(name: str, apart: float, hold_factor: float) -> Any:
    return Published(apart) if name == PAPER else Ours(OutlierLimits(apart=apart, hold_factor=hold_factor))


def tune(chosen: dict[str, Make], count: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Try all settings on tuning seeds; the best F1 wins, the earlier alert among equals."""
    cases = []
    for name, make in chosen.items():
        holds = (1.0,) if name == PAPER else HOLDS
        rules = {(apart, hold): rule_for(name, apart, hold) for apart in APART for hold in holds}
        scores = {setting: Score() for setting in rules}
        for stretch in stretches(count, 0, sizes):
            judge(stretch, make(stretch), rules, scores)
        best = max(rules, key=lambda each: (scores[each].row()["f1"], -each[1]))
        cases.append({"detector": name, "apart": best[0], "hold_factor": best[1], **scores[best].row()})
        print(cases[-1], flush=True)
    return cases


def hold_out(chosen: dict[str, Make], count: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Judge each detector with its tuned setting on seeds nobody has seen."""
    cases = []
    for name, make in chosen.items():
        score = {name: Score()}
        for stretch in stretches(count, HELD_OUT, sizes):
            judge(stretch, make(stretch), {name: rule_for(name, *TUNED[name])}, score)
        one = score[name]
        cases.append(
            {"detector": name, **one.row(), "missed": dict(one.missed_kinds), "false": dict(one.false_metrics)}
        )
        cases[-1]["kinds"] = dict(one.kinds)
        print(f"{name:24}", {key: value for key, value in cases[-1].items() if key != "detector"}, flush=True)
    return cases


def ablate(count: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Judge the default with one of its rules changed at a time, on held-out seeds."""
    rules = {name: Ours(limits) for name, limits in ABLATIONS.items()}
    scores = {name: Score() for name in rules}
    for stretch in stretches(count, HELD_OUT, sizes):
        judge(stretch, SpreadDetector(), rules, scores)
    cases = [{"detector": "spread", "change": name, **scores[name].row()} for name in rules]
    for case in cases:
        print(case, flush=True)
    return cases


def timed(chosen: dict[str, Make]) -> list[dict[str, Any]]:
    """Time one call (one reading of the whole fleet, detector and continuity): the median of many."""
    cases = []
    for machines in (10, 100, 1500):
        stretch = make_stretch(7, machines=machines, faulty=False, seconds=220)
        for name, make in chosen.items():
            detector, rule = make(None), rule_for(name, *TUNED.get(name, (4.0, 1.0)))
            seen_state, state = detector.begin(stretch.fleet), rule.begin(stretch.fleet)
            took = []
            for second, values in enumerate(stretch.values[: 220 if name == "spread" else 60]):
                reading = Reading(float(second), values.astype(np.float64))
                before = time.perf_counter()
                seen_state, seen = detector.step(seen_state, stretch.fleet, reading)
                state, _ = rule.advance(state, stretch.fleet, reading, seen)
                took.append(time.perf_counter() - before)
            cases.append(
                {"machines": machines, "detector": name, "call_ms": round(1e3 * statistics.median(took[10:]), 3)}
            )
            print(cases[-1], flush=True)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "mode", nargs="?", choices=("live", "healthy", "judge", "tune", "time", "ablate"), default="live"
    )
    parser.add_argument("--stretches", type=int, default=150, help="with a fault, and as many without")
    parser.add_argument("--small", action="store_true", help="fleets of 8 to 64 machines instead of 8 to 256")
    parser.add_argument("--only", action="append", default=[], metavar="DETECTOR")
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--machines", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.mode == "live":
        print_result("outliers_live", live(arguments.stretches))
        return
    if arguments.mode == "healthy":
        print_result("outliers_healthy", healthy(arguments.hours, arguments.machines, arguments.seeds))
        return
    if arguments.mode == "ablate":
        arguments.only = ["spread"]
    sizes = SMALL if arguments.small else SIZES
    wanted = arguments.only or [*SIMPLE, *LEARNT]
    chosen: dict[str, Make] = {name: make for name, make in SIMPLE.items() if name in wanted}
    error = None
    if set(wanted) & set(LEARNT):
        made, error = learnt()
        chosen.update((name, make) for name, make in made.items() if name in wanted)
        print(f"LSTM-VAE trained, mean squared error {error:.1e}", flush=True)
    if arguments.mode == "tune":
        print_result("outliers_tune", tune(chosen, arguments.stretches, sizes))
        return
    if arguments.mode == "ablate":
        print_result("outliers_ablate", ablate(arguments.stretches, sizes))
        return
    cases = hold_out(chosen, arguments.stretches, sizes) if arguments.mode == "judge" else timed(chosen)
    print_result("outliers", cases, stretches=arguments.stretches, vae_error=error)


if __name__ == "__main__":
    sys.exit(main())
