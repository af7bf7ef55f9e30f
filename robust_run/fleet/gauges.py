"""What a fleet adds up to, in Prometheus' words. Pure.

All are gauges: folders are cleared, so a sum may go down. Labels have few values: kinds, components and phases are words of ours,
and of nodes only lemons are named, twenty at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, get_args

from robust_run.fleet.results import Fleet, Part, Rate
from robust_run.fleet.totals import PHASES
from robust_run.fleet.words import Component, State
from robust_run.report.metrics import MetricFamily, Sample, number
from robust_run.report.types import ActionName, VerdictKind

MOST_LEMONS = 20
_Value = TypeVar("_Value")


def families(fleet: Fleet) -> list[MetricFamily]:
    """Return the families, in the order in which they are written."""
    found = [
        number(
            "fleet_read_time_seconds", "gauge", "When the folders were read, seconds since the epoch.", fleet.at_unix_s
        ),
        _by("fleet_runs", "Runs that are known.", "state", get_args(State), fleet.by_state, float),
        number("fleet_run_seconds", "gauge", "How long all runs lasted together.", fleet.hours * 3600.0),
        number("fleet_node_seconds", "gauge", "How long nodes were part of runs.", fleet.node_hours * 3600.0),
        number("fleet_gpu_seconds", "gauge", "The same of GPUs, where they are known.", fleet.gpu_hours * 3600.0),
        _maybe("fleet_ettr_ratio", "Effective training time over all time.", fleet.ettr),
        _maybe("fleet_ettr_by_node_time_ratio", "The same, a run counting by its nodes.", fleet.ettr_by_node_hours),
        _by("fleet_incidents", "Incidents by kind.", "kind", get_args(VerdictKind), fleet.by_kind, _incidents),
        _by(
            "fleet_component_incidents",
            "Incidents by what the fault was in.",
            "component",
            get_args(Component),
            fleet.by_component,
            _incidents,
        ),
        _by(
            "fleet_action_incidents",
            "Incidents by what was done.",
            "action",
            get_args(ActionName),
            fleet.by_action,
            _incidents,
        ),
        _by("fleet_lost_seconds", "Time without training after incidents.", "phase", PHASES, fleet.by_phase, _seconds),
        _by(
            "fleet_lost_node_seconds",
            "The same, times the nodes that stood still.",
            "phase",
            PHASES,
            fleet.by_phase,
            _node_s,
        ),
    ]
    return [*found, *_rates(fleet), *_nodes(fleet)]


def _rates(fleet: Fleet) -> list[MetricFamily]:
    """Return the rates per node and day, each with the ends of its interval."""
    sides: tuple[tuple[str, str, Callable[[Rate], float]], ...] = (
        ("", "Failures per node and day.", lambda rate: rate.per_1000),
        ("_low", "The lower end of its 95 % interval.", lambda rate: rate.low),
        ("_high", "The upper end of its 95 % interval.", lambda rate: rate.high),
    )
    return [
        MetricFamily(
            name=f"fleet_failures_per_node_day{side}",
            kind="gauge",
            about=about,
            labels=("what",),
            samples=tuple(
                Sample((name.replace(" ", "_"),), value_of(rate) / 1000.0) for name, rate in fleet.rates.items()
            ),
        )
        for side, about, value_of in sides
    ]


def _nodes(fleet: Fleet) -> list[MetricFamily]:
    skipped = sum(each.count for each in fleet.skipped)
    return [
        number("fleet_nodes", "gauge", "Nodes that runs were on.", float(fleet.nodes_seen)),
        number(
            "fleet_lemon_nodes", "gauge", "Nodes that fail more often than chance explains.", len(fleet.lemons.lemons)
        ),
        MetricFamily(
            name="fleet_lemon_failures",
            kind="gauge",
            about=f"Failures of lemon nodes, {MOST_LEMONS} of them at most.",
            labels=("node",),
            samples=tuple(Sample((each.node,), float(each.failures)) for each in fleet.lemons.lemons[:MOST_LEMONS]),
        ),
        number("fleet_left_out_directories", "gauge", "Run directories that are in no figure.", float(skipped)),
    ]


def _maybe(name: str, about: str, value: float | None) -> MetricFamily:
    return MetricFamily(name=name, kind="gauge", about=about, samples=() if value is None else (Sample((), value),))


def _by(
    name: str,
    about: str,
    label: str,
    words: tuple[str, ...],
    values: Mapping[str, _Value],
    value_of: Callable[[_Value], float],
) -> MetricFamily:
    """Return a family with a sample of each word, so that no line comes and goes."""
    samples = (Sample((word,), value_of(values[word]) if word in values else 0.0) for word in words)
    return MetricFamily(name=name, kind="gauge", about=about, labels=(label,), samples=tuple(samples))


def _incidents(part: Part) -> float:
    return float(part.incidents)


def _seconds(part: Part) -> float:
    return part.seconds


def _node_s(part: Part) -> float:
    return part.node_hours * 3600.0
