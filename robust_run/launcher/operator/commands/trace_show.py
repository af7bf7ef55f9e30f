"""What is seen of ranks, as lines for people: stacks, who waits for whom, an incident. Pure but for the time zone."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from robust_run.launcher.operator.views.show import age, clean, plural
from robust_run.report.pages.next_steps import MOST_PIDS, stopped_in
from robust_run.report.pages.states import is_older
from robust_run.report.types import Incident
from robust_run.tracer.nccl.words import in_flight_lines
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.stacks.cluster import Cluster, clusters
from robust_run.tracer.types import ProcessSight, RankSight, Scene, ThreadStack
from robust_run.tracer.verdict import RankChain, chains, describe_inside, describe_waits
from robust_run.tracer.verdict.frozen import thawing
from robust_run.tracer.words import span

#: Frames of a stack that a summary of all ranks shows; of one rank all are shown.
SHOWN_FRAMES = 12
#: Lines about who waits for whom.
SHOWN_WAITS = 20

_WHY_NOT = "ROBUST_TRACE=0, or torch.distributed is not in use (yet)"

_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a disk", "T": "is stopped", "t": "is traced", "Z": "has ended"}


def stacks_lines(scene: Scene) -> list[str]:
    """Return the stacks of all ranks, those alike together, the rarest first."""
    lines: list[str] = []
    for cluster in sorted(clusters(scene.ranks), key=lambda cluster: len(cluster.ranks)):
        who = plural(len(cluster.ranks), "rank") + f" ({span(cluster.ranks)})"
        what = "in communication" if cluster.waiting else _doing(scene, cluster)
        role = f", {cluster.role}" if cluster.role not in ("", "rank") else ""
        lines.append(clean(f"{who}{role}: {what}"))
        lines += [clean(f"    {frame}") for frame in cluster.frames[:SHOWN_FRAMES]]
        if len(cluster.frames) > SHOWN_FRAMES:
            lines.append(f"    ... {len(cluster.frames) - SHOWN_FRAMES} more")
    without = [sight.rank for sight in scene.ranks if not any(process.stacks for process in sight.processes)]
    if without:
        lines.append(f"no stack could be had of {plural(len(without), 'rank')} ({span(without)})")
    return [*lines, *map(clean, describe_inside(scene)), *_silent(scene)]


def _doing(scene: Scene, cluster: Cluster) -> str:
    """Return what the first rank of a cluster does, if it is about ranks themselves."""
    first = next((sight for sight in scene.ranks if sight.rank == cluster.ranks[0]), None)
    return activity_of(first).reason if first is not None and cluster.role in ("", "rank") else "at work"


def rank_lines(sight: RankSight) -> list[str]:
    """Return all that is seen of one rank."""
    activity = activity_of(sight)
    lines = [clean(f"rank {sight.rank} on {sight.node}: {activity.reason}")]
    if sight.exit_code is not None:
        after = "; its program had ended before" if sight.had_ended else ""
        lines = [clean(f"rank {sight.rank} on {sight.node} has ended with exit code {sight.exit_code}{after}")]
    trace = sight.trace
    if trace is not None:
        lines.append(f"  {plural(trace.steps, 'step')}, waited for peers {trace.blocked_s:.1f} s in all")
    if sight.nccl is not None:
        lines += [clean(f"  {line}") for line in in_flight_lines(sight.nccl)]
    for process in sight.processes:
        lines += _process_lines(process)
    return lines


def _process_lines(process: ProcessSight) -> list[str]:
    state = _STATES.get(process.state, process.state)
    where = f" in {process.waits_in}" if process.waits_in not in ("", "0") else ""
    kind = "" if process.is_rank else "child, "
    lines = [clean(f"  process {process.pid} ({kind}{process.command}) {state}{where}, {process.cpu:.0%} of a core")]
    for stack in process.stacks[-1] if process.stacks else ():
        lines += _stack_lines(stack)
    return lines


def _stack_lines(stack: ThreadStack) -> list[str]:
    name = "main thread" if stack.is_main else f"thread {stack.name}".rstrip()
    return [
        f"    {clean(name)}",
        *(clean(f"      {frame.file}:{frame.line} {frame.function}") for frame in stack.frames),
    ]


class ExplainedScene(Scene, frozen=True, kw_only=True):
    """A scene with who waits for whom in it: what `robust why --json` prints."""

    chains: tuple[RankChain, ...] = ()


def explained(scene: Scene) -> ExplainedScene:
    """Return a scene with its chains."""
    return ExplainedScene(**msgspec.structs.asdict(scene), chains=chains(scene).drawn)


def why_lines(scene: Scene, conclusion: str) -> list[str]:
    """Return who waits for whom, and what a verdict would be now."""
    waits = describe_waits(scene, limit=SHOWN_WAITS)
    untraced = [
        sight.rank for sight in scene.ranks if sight.trace is None and sight.nccl is None and sight.exit_code is None
    ]
    if scene.ranks and len(untraced) == len(scene.ranks):
        return [f"no rank is traced: {_WHY_NOT}; robust stacks shows what they do", *_silent(scene)]
    lines = [clean(line) for line in waits] or ["no rank waits for another at this moment"]
    lines += [clean(line) for line in describe_inside(scene)]
    if untraced:
        lines.append(f"not traced: {plural(len(untraced), 'rank')} ({span(untraced)}): {_WHY_NOT}")
    if conclusion:
        lines.append(clean(conclusion))
    return [*lines, *_stopped(scene), *map(clean, thawing(scene.ranks)), *_silent(scene)]


def _stopped(scene: Scene) -> list[str]:
    """Return what lets processes go on that are stopped at this moment."""
    stopped = stopped_in(scene.ranks, [sight.rank for sight in scene.ranks])
    return [
        clean(f"stopped on {node}: type there: kill -CONT {' '.join(map(str, pids[:MOST_PIDS]))}")
        for node, pids in stopped.items()
    ]


def _silent(scene: Scene) -> list[str]:
    return [f"no answer from {', '.join(scene.silent_nodes)}"] if scene.silent_nodes else []


def incident_lines(
    incident: Incident, scene: Scene | None, local: Callable[[float], time.struct_time] = time.localtime
) -> list[str]:
    """Return an incident as a page of text."""
    verdict, action = incident.verdict, incident.action
    when = time.strftime("%Y-%m-%d %H:%M:%S", local(incident.detected_s))
    lines = [
        f"incident {incident.id} of attempt {incident.attempt}, {when}",
        f"  {verdict.sentence}",
        f"  verdict: {verdict.kind}, {verdict.confidence} confidence, rule {verdict.rule}"
        + (f", ranks {span(verdict.ranks)}" if verdict.ranks else "")
        + (f", {', '.join(verdict.nodes)}" if verdict.nodes else "")
        + (f", group {verdict.group}" if verdict.group else ""),
    ]
    if verdict.over_evicted:
        lines.append(f"  of these {len(verdict.over_evicted)} may be innocent: ranks {span(verdict.over_evicted)}")
    noticed = f"noticed {age_between(incident.onset_s, incident.detected_s)} after its onset"
    lines.append(f"  {noticed}, judged {age_between(incident.onset_s, incident.decided_s)} after it")
    lines.append(f"  done: {action.name}{': ' + action.reason if action.reason else ''}")
    if incident.resumed_s is not None:
        what = "ranks went on" if incident.action.name == "report" else "next step"
        lines.append(f"  {what} {age_between(incident.onset_s, incident.resumed_s)} after the onset")
    for evidence in incident.evidence:
        of = f" of rank {evidence.rank}" if evidence.rank is not None else ""
        lines.append(
            f"  {evidence.what}{of}{', ' + evidence.path if evidence.path else ''}:{'' if evidence.text.strip() else ' empty'}"
        )
        lines += [f"    {line}" for line in evidence.text.splitlines()[:60]]
    if scene is not None and not is_older(scene, incident):
        at = f", seen at {time.strftime('%H:%M:%S', local(scene.at_unix_s))}" if scene.at_unix_s else ""
        lines += [f"  who waited for whom{at}:", *(f"    {line}" for line in describe_waits(scene, limit=SHOWN_WAITS))]
    return [clean(line) for line in lines]


def age_between(from_s: float, to_s: float) -> str:
    """Return `3.2 s` or `12 min`."""
    seconds = max(to_s - from_s, 0.0)
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)
