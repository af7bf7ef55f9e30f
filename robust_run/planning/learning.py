"""What runs have shown, in place of the defaults of a plan (`robust plan --from`). Pure.

A default is an observation of others: each is worth so much of one's own, and what is used lies between the two.

- A rate is the mean of a Gamma distribution: the default, as if it had been seen in 2,500 node-days (changes of code: in 10 days
  of a job), and what was counted in as many node-days as there were. Its interval is that of the counts alone (Garwood 1936).
- A duration: median and p95 are means of logarithms, a default worth 10 of one's own; with fewer than 5 it stays.
- A step and a save are the program's own: what was seen replaces the default.

What the file of `--mix` says stays as it is. Times of jobs that were less than a quarter as large make no default shorter: larger
jobs start slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.fleet.found import Found
from robust_run.fleet.lemons import own_failures, search
from robust_run.fleet.poisson import interval
from robust_run.fleet.rates import node_seconds
from robust_run.fleet.words import IncidentFacts, RunFacts
from robust_run.planning.mix import MixFile
from robust_run.planning.sights import DAY_S, ROWS, UNEXPLAINED, Row, Seen, seen
from robust_run.planning.words import P95_SIGMAS, FaultKind, Mix, Saving, Spread, Times

PRIOR_NODE_DAYS = 2500.0
PRIOR_DAYS = 10.0
PRIOR_NODES = 500
"""A default share of lemons is worth so many nodes."""
PRIOR_LEMONS = 3
PRIOR_TIMES, FEWEST_TIMES = 10, 5
FEWEST_STEPS, FEWEST_SAVES = 20, 5
SMALLER = 4
LEAST_S = 0.1


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a plan, and where it comes from."""

    name: str
    """As in a file of `--mix`: `faults.hang.per_1000_node_days`."""
    default: float
    count: int
    """Of observations."""
    seen: float | None = None
    """What they say alone; None: there are none."""
    low: float | None = None
    high: float | None = None
    """95 % of that."""
    used: float
    why: str = ""
    """Why the default stays, where it does."""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What runs have shown."""

    runs: int
    node_days: float
    job_days: float
    largest: int
    """Nodes of the largest of them."""
    left_out: str = ""
    """Files and directories that could not be read."""
    again: int = 0
    own: int = 0
    """Incidents that count for nothing: of a fault that was seen before; the program's own, people's, and reports."""
    figures: tuple[Figure, ...] = ()
    is_small: bool = False
    """The plan is for a job so much larger that no time was made shorter."""


def learned(found: Found, base: MixFile, nodes: int) -> tuple[MixFile, Learned]:
    """Return the numbers of a plan for so many nodes, and where they come from. `base`: as the user's file has it."""
    runs = found.facts
    node_days = math.fsum(node_seconds(runs).values()) / DAY_S
    job_days = math.fsum(run.until_s - run.began_s for run in runs) / DAY_S
    largest = max((run.nodes for run in runs), default=0)
    all_seen = seen(runs)
    book = _Book(base.named, is_small=nodes > SMALLER * largest)
    mix = _lemons(_faults(base.mix, all_seen, runs, (node_days, job_days), book), runs, book)
    told = msgspec.structs.replace(
        base,
        mix=mix,
        times=_times(base.times, runs, book),
        saving=_saving(base.saving, runs, book),
    )
    return told, Learned(
        runs=len(runs),
        node_days=node_days,
        job_days=job_days,
        largest=largest,
        left_out=found.left_out_words(),
        again=all_seen.again,
        own=all_seen.own,
        figures=tuple(book.figures),
        is_small=book.is_small and bool(runs),
    )


class _Book:
    """Blends numbers, and keeps where each comes from."""

    def __init__(self, fixed: frozenset[str], *, is_small: bool) -> None:
        self.fixed, self.is_small = fixed, is_small
        self.figures: list[Figure] = []

    def rate(self, name: str, default: float, count: int, days: float, *, prior: float, scale: float) -> float:
        """Return a rate per `scale` of days."""
        if name in self.fixed or days <= 0:
            return default
        low, high = interval(count)
        used = (default * prior / scale + count) / (prior + days) * scale
        self.figures.append(
            Figure(
                name=name,
                default=default,
                count=count,
                seen=count / days * scale,
                low=low / days * scale,
                high=high / days * scale,
                used=used,
            )
        )
        return used

    def spread(self, name: str, default: Spread, seconds: Iterable[float]) -> Spread:
        """Return a duration."""
        found = [max(each, LEAST_S) for each in seconds]
        if name in self.fixed or not found:
            return default
        median = statistics.median(found)
        if len(found) < FEWEST_TIMES:
            self._keep(name, default.median, len(found), median, f"fewer than {FEWEST_TIMES} seen")
            return default
        sigma = statistics.pstdev(map(math.log, found))
        weight = len(found) / (len(found) + PRIOR_TIMES)
        used = Spread(
            median=_between(default.median, median, weight),
            p95=_between(max(default.p95, default.median), median * math.exp(P95_SIGMAS * sigma), weight),
        )
        if self.is_small and used.median < default.median:
            self._keep(name, default.median, len(found), median, "seen in much smaller jobs")
            return default
        self.figures.append(Figure(name=name, default=default.median, count=len(found), seen=median, used=used.median))
        return used

    def own(self, name: str, default: float, found: Sequence[float], *, least: float, shrinks: bool = True) -> float:
        """Return a number that is the program's: the median of what its runs had. Not `shrinks`: much smaller jobs make it no
        smaller, as their program is another."""
        if name in self.fixed or not found:
            return default
        used = max(statistics.median(found), least)
        if self.is_small and not shrinks and used < default:
            self._keep(name, default, len(found), used, "seen in much smaller jobs")
            return default
        self.figures.append(Figure(name=name, default=default, count=len(found), seen=used, used=used))
        return used

    def share(self, name: str, default: float, found: float, count: int, used: float) -> float:
        """Return a share or a factor that was reckoned."""
        if name in self.fixed:
            return default
        self.figures.append(Figure(name=name, default=default, count=count, seen=found, used=used))
        return used

    def _keep(self, name: str, default: float, count: int, found: float, why: str) -> None:
        self.figures.append(Figure(name=name, default=default, count=count, seen=found, used=default, why=why))


def _between(default: float, found: float, weight: float) -> float:
    if default <= 0:
        return found
    return math.exp((1.0 - weight) * math.log(default) + weight * math.log(max(found, LEAST_S)))


# --- faults


def _faults(mix: Mix, all_seen: Seen, runs: Sequence[RunFacts], days: tuple[float, float], book: _Book) -> Mix:
    node_days, job_days = days
    faults = dict(mix.faults)
    for row in ROWS:
        _of_row(faults, row, all_seen.by_row.get(row.name, ()), days, book)
    changes = sum(max(len(run.code) - 1, 0) for run in runs) - len(all_seen.by_row.get("bad updates", ()))
    update = faults.get("update")
    if update is not None:
        rate = book.rate(
            "faults.update.per_day", update.per_day, max(changes, 0), job_days, prior=PRIOR_DAYS, scale=1.0
        )
        faults["update"] = msgspec.structs.replace(update, per_day=rate)
    unexplained = all_seen.by_row.get(UNEXPLAINED, ())
    if unexplained and UNEXPLAINED not in faults:
        name = f"faults.{UNEXPLAINED}.per_1000_node_days"
        rate = book.rate(name, 0.0, len(unexplained), node_days, prior=PRIOR_NODE_DAYS, scale=1000.0)
        faults[UNEXPLAINED] = FaultKind(shows="crash", per_1000_node_days=rate)
    return msgspec.structs.replace(mix, faults=faults)


def _of_row(
    faults: dict[str, FaultKind],
    row: Row,
    found: Sequence[IncidentFacts],
    days: tuple[float, float],
    book: _Book,
) -> None:
    """Take in what was seen of one row: its kinds keep their proportions."""
    names = [name for name in row.faults if name in faults]
    field = "per_day" if any(faults[name].per_day for name in names) else "per_1000_node_days"
    rates = {name: float(getattr(faults[name], field)) for name in names}
    total = sum(rates.values())
    free = [name for name in names if f"faults.{name}.{field}" not in book.fixed]
    if free:
        # What the user's file says of some kinds of the row is theirs: of the rest, as much is seen as comes in the mix.
        share = sum(rates[name] for name in free) / total if total else 1.0
        count = round(len(found) * share)
        default = sum(rates[name] for name in free)
        over, prior, scale = (days[1], PRIOR_DAYS, 1.0) if field == "per_day" else (days[0], PRIOR_NODE_DAYS, 1000.0)
        label = f"faults.{'+'.join(free)}.{field}"
        used = book.rate(label, default, count, over, prior=prior, scale=scale)
        for name in free if used != default else ():
            part = used * rates[name] / default if default else used / len(free)
            faults[name] = msgspec.structs.replace(faults[name], **{field: part})
    for name in names:
        # Of all others a journal begins with the first sign, or goes on until it is known what to do.
        if faults[name].shows == "lost":
            detects = [each.lost.detect for each in found if each.lost.detect > 0]
            spread = book.spread(f"faults.{name}.detect", faults[name].detect, detects)
            faults[name] = msgspec.structs.replace(faults[name], detect=spread)


def _lemons(mix: Mix, runs: Sequence[RunFacts], book: _Book) -> Mix:
    """Take in nodes that fail more often than chance explains, where enough was seen for any to be found."""
    found = search(own_failures(runs), node_seconds(runs))
    if found.is_too_few:
        return mix
    count = len(found.lemons)
    share = (mix.lemons * PRIOR_NODES + count) / (PRIOR_NODES + found.nodes)
    changes = {"lemons": book.share("lemons", mix.lemons, count / found.nodes, found.nodes, share)}
    if count:
        times = [min(each.times, 1000.0) for each in found.lemons]
        factor = (mix.lemon_factor * PRIOR_LEMONS + sum(times)) / (PRIOR_LEMONS + count)
        factor_seen = statistics.fmean(times)
        changes["lemon_factor"] = book.share("lemon_factor", mix.lemon_factor, factor_seen, count, factor)
    return msgspec.structs.replace(mix, **changes)


# --- times


def _times(times: Times, runs: Sequence[RunFacts], book: _Book) -> Times:
    incidents = [each for run in runs for each in run.incidents]
    starts = [each for run in runs for each in run.starts]
    new = {id(run.starts[0]) for run in runs if run.starts}

    def phase(of: Callable[[IncidentFacts], float]) -> list[float]:
        return [seconds for each in incidents if (seconds := of(each)) > 0]

    ready = [each for each in starts if each.ready_s is not None]
    cold = [each.ready_s or 0.0 for each in ready if each.began == "cold"]
    warm = [each.ready_s or 0.0 for each in ready if each.began != "cold"]
    # Nothing is loaded by a job that begins, so that its first start shows what groups take.
    groups = [each.first_step_s - times.step for each in starts if each.first_step_s is not None and id(each) in new]
    connect = book.spread("times.connect", times.connect, groups)

    def load(*sources: str) -> list[float]:
        return [each.lost.load - connect.median for each in incidents if each.source in sources and each.lost.load > 0]

    return msgspec.structs.replace(
        times,
        end=book.spread("times.end", times.end, phase(lambda each: each.lost.end)),
        checks=book.spread("times.checks", times.checks, phase(lambda each: each.lost.check)),
        launch=book.spread("times.launch", times.launch, warm),
        cold_launch=book.spread("times.cold_launch", times.cold_launch, cold),
        connect=connect,
        load_memory=book.spread("times.load_memory", times.load_memory, load("memory", "peer")),
        load_storage=book.spread("times.load_storage", times.load_storage, load("storage")),
        step=book.own("times.step", times.step, _steps(runs), least=1e-3, shrinks=False),
    )


def _steps(runs: Sequence[RunFacts]) -> list[float]:
    return [run.step_s for run in runs if run.step_s and (run.steps or 0) >= FEWEST_STEPS]


def _saving(saving: Saving, runs: Sequence[RunFacts], book: _Book) -> Saving:
    """Take in how often runs save, and what that costs: of those that saved so often that it is known."""
    often = [run for run in runs if run.saves >= FEWEST_SAVES]
    every = [run.save_every_s for run in often if run.save_every_s]
    blocks = [run.blocked_s for run in often if run.blocked_s is not None]
    return msgspec.structs.replace(
        saving,
        every_s=book.own("saving.every_s", saving.every_s, every, least=1.0),
        blocks_s=book.own("saving.blocks_s", saving.blocks_s, blocks, least=0.0),
    )
