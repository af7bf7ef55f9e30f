"""Folding: from the facts of runs to what an operator wants to know. Pure; the order of the runs does not matter.

All sums are exact (`math.fsum`) and go over runs in an order of their own, so folders that are put together say the same as
folders that are folded at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.fleet import lemons, rates
from robust_run.fleet.course import course, lost_s
from robust_run.fleet.results import CodeRow, Fleet, NodeCount, Part, RunLine
from robust_run.fleet.runs import duration_s, effective_s, once, since
from robust_run.fleet.starts import groups
from robust_run.fleet.words import IncidentFacts, Lost, RunFacts

_HOUR_S = 3600.0
PHASES = Lost.__struct_fields__


def fold(runs: Iterable[RunFacts], since_s: float | None = None) -> Fleet:
    """Return what runs add up to. Each counts once; with `since_s`, of each only what is of the time after it."""
    told = list(runs)
    unlike = once(told)
    kept = unlike if since_s is None else [each for run in unlike if (each := since(run, since_s)) is not None]
    node_s = rates.node_seconds(kept)
    all_node_s = math.fsum(node_s.values())
    incidents = [each for run in kept for each in run.incidents]
    failures = lemons.own_failures(kept)
    nodes = _nodes(incidents, node_s, failures)
    ettr, by_node_hours, known = _ettr(kept)
    return Fleet(
        since_unix_s=since_s,
        begin_unix_s=min((run.began_s for run in kept), default=None),
        end_unix_s=max((run.until_s for run in kept), default=None),
        runs=len(kept),
        by_state=_counted(run.state for run in kept),
        cut=sum(since_s is not None and run.began_s < since_s < run.until_s for run in unlike),
        twice=len(told) - len(unlike),
        with_gaps=sum(run.gap_s > 0 for run in kept),
        gap_hours=math.fsum(run.gap_s for run in kept) / _HOUR_S,
        hours=math.fsum(map(duration_s, kept)) / _HOUR_S,
        node_hours=math.fsum(map(_node_time_s, kept)) / _HOUR_S,
        gpu_hours=math.fsum(run.gpus * duration_s(run) for run in kept) / _HOUR_S,
        ettr=ettr,
        ettr_by_node_hours=by_node_hours,
        ettr_runs=known,
        incidents=len(incidents),
        by_kind=_parts(kept, lambda each: each.kind),
        by_component=_parts(kept, lambda each: each.component),
        by_action=_parts(kept, lambda each: each.action),
        by_phase=_phases(kept),
        other=_other(kept),
        nodes=nodes,
        nodes_seen=len(node_s),
        rates=rates.overall(incidents, all_node_s),
        kind_rates=rates.rates_by(incidents, lambda each: each.kind, all_node_s),
        component_rates=rates.rates_by(incidents, lambda each: each.component, all_node_s),
        lemons=lemons.search(failures, node_s),
        starts=groups(kept),
        code=_code(kept),
        course=course(kept),
        lines=tuple(map(_line, sorted(kept, key=lambda run: (run.state != "live", -run.began_s, run.run_id)))),
    )


def _node_time_s(run: RunFacts) -> float:
    """Return the node time of a run; where it is not kept by node, that of its world."""
    return math.fsum(run.node_s.values()) if run.node_s else run.nodes * duration_s(run)


def _ettr(runs: Sequence[RunFacts]) -> tuple[float | None, float | None, int]:
    """Return ETTR by time, by node time, and of how many runs it is known."""
    known = [(duration_s(run), effective, run.nodes) for run in runs if (effective := effective_s(run)) is not None]
    all_s = math.fsum(lasted for lasted, _, _ in known)
    if not all_s > 0:
        return None, None, 0
    by_time = math.fsum(effective for _, effective, _ in known) / all_s
    all_node_s = math.fsum(nodes * lasted for lasted, _, nodes in known)
    by_node_time = math.fsum(nodes * effective for _, effective, nodes in known) / all_node_s if all_node_s else None
    return by_time, by_node_time, len(known)


def _parts(runs: Sequence[RunFacts], name_of: Callable[[IncidentFacts], str]) -> dict[str, Part]:
    """Return what was lost, by a name that incidents have, the dearest first."""
    found: dict[str, list[tuple[float, int]]] = {}
    for run in runs:
        for each in run.incidents:
            found.setdefault(name_of(each), []).append((lost_s(each.lost), run.nodes))
    parts = {
        name: Part(
            incidents=len(each),
            seconds=math.fsum(lost for lost, _ in each),
            node_hours=math.fsum(lost * nodes for lost, nodes in each) / _HOUR_S,
        )
        for name, each in found.items()
    }
    return dict(sorted(parts.items(), key=lambda item: (-item[1].node_hours, -item[1].incidents, item[0])))


def _phases(runs: Sequence[RunFacts]) -> dict[str, Part]:
    found = {}
    for phase in PHASES:
        lost = [(getattr(each.lost, phase), run.nodes) for run in runs for each in run.incidents]
        part = Part(
            incidents=sum(each > 0 for each, _ in lost),
            seconds=math.fsum(each for each, _ in lost),
            node_hours=math.fsum(each * nodes for each, nodes in lost) / _HOUR_S,
        )
        if part.incidents:
            found[phase] = part
    return found


def _other(runs: Sequence[RunFacts]) -> Part:
    lost = [(lost_s(run.other), run.nodes) for run in runs]
    return Part(
        seconds=math.fsum(each for each, _ in lost),
        node_hours=math.fsum(each * nodes for each, nodes in lost) / _HOUR_S,
    )


def _nodes(
    incidents: Sequence[IncidentFacts], node_s: dict[str, float], failures: dict[str, list[lemons.Failure]]
) -> tuple[NodeCount, ...]:
    named: dict[str, list[IncidentFacts]] = {}
    for each in incidents:
        for node in dict.fromkeys((*each.nodes, *each.evicted)):
            named.setdefault(node, []).append(each)
    found = [
        NodeCount(
            node=node,
            node_days=node_s.get(node, 0.0) / rates.DAY_S,
            incidents=len(own),
            kinds=_counted(each.kind for each in own),
            evicted=sum(node in each.evicted for each in own),
            last_s=max(each.at_s for each in own),
            failures=len(failures.get(node, ())),
        )
        for node, own in named.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.failures, -each.incidents, each.node)))


def _code(runs: Sequence[RunFacts]) -> tuple[CodeRow, ...]:
    """Return the versions that failed, the most failures first. Versions of jobs with different names are not one."""
    found: dict[tuple[str, str], CodeRow] = {}
    for run in runs:
        for each in run.code:
            if not each.failed and not each.rolled_back:
                continue
            key = (run.name, each.version)
            known = found.get(key) or CodeRow(
                name=run.name, version=each.version, failed=0, runs=0, rolled_back=0, last_s=run.until_s
            )
            found[key] = msgspec.structs.replace(
                known,
                failed=known.failed + each.failed,
                runs=known.runs + 1,
                rolled_back=known.rolled_back + each.rolled_back,
                last_s=max(known.last_s, run.until_s),
            )
    return tuple(sorted(found.values(), key=lambda each: (-each.failed, -each.last_s, each.name, each.version)))


def _line(run: RunFacts) -> RunLine:
    lasted, effective = duration_s(run), effective_s(run)
    return RunLine(
        run_id=run.run_id,
        name=run.name,
        place=run.place,
        state=run.state,
        began_s=run.began_s,
        until_s=run.until_s,
        nodes=run.nodes,
        gpus=run.gpus,
        ettr=effective / lasted if effective is not None and lasted > 0 else None,
        incidents=len(run.incidents),
        kinds=_counted(each.kind for each in run.incidents),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    """Return how often each name occurs, the most frequent first."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
