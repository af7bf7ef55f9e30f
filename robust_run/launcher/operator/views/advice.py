"""Advice about a job: what is not as it should be and what to do next, a sentence each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.launcher.operator.views.status_types import IncidentView, JobView, LiveNode

#: A step that takes so many times as long as usual, and at least so many seconds, is worth a look.
LATE_STEPS, LATE_S = 5.0, 10.0
#: Nodes say once in a round what step they are at, so the newest step is up to so much older than it looks.
ROUND_S = 20.0
#: Below this share of training time the user should look where the rest went.
LOW_ETTR = 0.9
#: Younger jobs are still starting.
SETTLED_S = 600.0
#: Restarts that came so close together that the next may well come, too.
CLOSE_RESTARTS, CLOSE_S = 3, 600.0
#: Nodes that a finding names.
NAMED = 4


def next_step(job: JobView) -> str:
    """Return what the reader should type next; empty: nothing, all is well."""
    if job.outcome:
        return _after_the_end(job)
    if not job.alive:
        return job.todo
    if job.phase == "gathering":
        return _while_gathering(job)
    if job.phase == "stopping":
        return "robust stop --now ends it without waiting for the workers"
    if job.phase == "suspecting" or _is_late(job):
        return "robust why says who waits for whom"
    if _restarts_often(job):
        return "robust incident shows the last failure; robust events tells the rest"
    if job.last_incident is not None and job.last_incident.action == "report":
        if _is_still_stopped(job, job.last_incident):
            return "robust why says which process is stopped, and what lets it go on"
        return "robust incident shows what was reported; nothing was done about it"
    if job.nodes_needed > 1 and not job.nodes_standby and (job.nodes_evicted or job.nodes_lost):
        return "start robust-run on another node: no standby is left for the next failure"
    return ""


def _is_still_stopped(job: JobView, last: IncidentView) -> bool:
    """Whether ranks that were found to be stopped may be so still: no step is known to have been made since."""
    made_s = job.now_unix_s - job.step_age_s if job.step_age_s is not None else 0.0
    return last.kind == "stopped" and last.attempt == job.attempt and made_s <= last.at_unix_s


def _after_the_end(job: JobView) -> str:
    if job.outcome == "failed":
        if job.last_incident is None:
            return "robust events tells why"
        page = f", and so does the page {job.run_directory}/report.html" if job.run_directory else ""
        return f"robust incident shows what failed{page}"
    if job.outcome == "stopped" and job.last_incident is not None:
        return "robust incident shows the last failure before it was stopped"
    return ""


def _while_gathering(job: JobView) -> str:
    missing = job.nodes_needed - job.nodes_active - job.nodes_standby  # gathering: all that are here stand by
    if missing <= 0:
        return ""
    if job.evicted:
        return f"robust readmit {job.evicted[-1].name}, or start robust-run on {_nodes(missing)} more"
    return f"start robust-run on {_nodes(missing)} more"


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"


def _is_late(job: JobView) -> bool:
    if job.phase != "running" or job.step_age_s is None or job.step_s is None:
        return False
    return job.step_age_s > max(LATE_STEPS * job.step_s, LATE_S) + ROUND_S


def _restarts_often(job: JobView) -> bool:
    began = [each.began_unix_s for each in job.attempts if each.number > 0]
    return len(began) >= CLOSE_RESTARTS and job.now_unix_s - began[-CLOSE_RESTARTS] < CLOSE_S


def findings_of(job: JobView, nodes: Sequence[LiveNode]) -> tuple[str, ...]:
    """Return what is not as it should be, most pressing first. `nodes`: odd ones first."""
    found = []
    silent = [node for node in nodes if node.standing == "active" and node.odd.startswith("silent")]
    if silent:
        found.append(f"{_named(silent)}: no heartbeat for {silent[0].silent_s or 0.0:.1f} s")
    if _is_late(job):
        usual = f"a step takes {job.step_s:.3g} s" if job.step_s is not None else "steps are shorter"
        found.append(f"no step for {job.step_age_s:.0f} s, though {usual}")
    slow = [node for node in nodes if node.slow is not None and "usual work" in node.odd]
    if slow:
        worst = slow[0]
        found.append(f"{_named(slow)}: rank {worst.rank} works {worst.slow:.2f} times as long for a step as is usual")
    found += [f"{each.node}: {each.text}" for each in job.findings[:NAMED]]
    found += [f"{each.node}: blind: {each.text}" for each in job.blind[:NAMED]]
    if _restarts_often(job):
        found.append(f"{len(job.attempts) - 1} restarts, the last {CLOSE_RESTARTS} of them within 10 min")
    old = job.now_unix_s - job.started_unix_s > SETTLED_S
    if old and job.ettr_hour is not None and job.ettr_hour < LOW_ETTR and not job.outcome:
        found.append(f"only {job.ettr_hour:.0%} of the last hour was training")
    if job.code and "probation" in job.code:
        found.append(f"{job.code}: it is taken back if it fails")
    return tuple(found)


def _named(nodes: Sequence[LiveNode]) -> str:
    names = ", ".join(node.name for node in nodes[:NAMED])
    return names if len(nodes) <= NAMED else f"{names} and {len(nodes) - NAMED} more"
