"""What simulated faults leave for the core to judge: words of ranks and sensors, verdicts of analysis, results of checks."""

from __future__ import annotations

import msgspec

from robust_run.health.checks.types import CheckJudgement, SuspectNode
from robust_run.health.types import Event as SensorEvent
from robust_run.health.types import Finding, FindingKind, Trouble
from robust_run.launcher.model.check_events import Diagnose, Diagnosed
from robust_run.launcher.model.events import HangSuspected
from robust_run.planning.faults import Fault
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.job import SimulatedJob
from robust_run.tracer.types import TraceVerdict

_KINDS: dict[str, FindingKind] = {
    "peer": "peer_connection",
    "storage": "storage",
    "host_memory": "out_of_memory",
    "device_memory": "out_of_memory",
    "native_crash": "native_crash",
    "mismatch": "native_crash",
    "user_exception": "exception",
    "nan": "exception",
}


def finding_of(name: str) -> Finding:
    """Return what a rank says as it ends of a trouble."""
    trouble: Trouble = msgspec.convert(name, Trouble)
    kind = _KINDS.get(name, "accelerator")
    return Finding(kind=kind, line=name, exception="RuntimeError", message=name, trouble=trouble)


def alert_of(fault: Fault, now_s: float) -> SensorEvent:
    """Return what a sensor says of a fault."""
    return SensorEvent(name=fault.kind.trouble, kind="alert", subject="", detail=fault.name, at_s=now_s)


def suspicion_of(world: SimulatedJob, host: Host, fault: Fault) -> HangSuspected:
    """Return what an agent says whose rank keeps others waiting, or is slow."""
    reason = "slow" if fault.kind.shows == "slow" else ""
    rank = world.state.layout[world.state.places[host.agent]].first_rank
    return HangSuspected(
        attempt=world.state.attempt, node=host.agent, rank=rank, waited_s=5.0, reason=reason, number=not reason
    )


def verdict_of(world: SimulatedJob, host: Host, fault: Fault) -> TraceVerdict | None:
    """Return what analysis says of the newest attempt, which waits for this host."""
    place = world.state.places.get(host.agent)
    if place is None:
        return None
    placement = world.state.layout[place]
    is_slow = fault.kind.shows == "slow"
    onset_s = world.attempt.onset_s if world.attempt.onset_s is not None else world.now_s
    proven = world.rng("proven", world.index, fault.number).random() < fault.kind.proven
    return TraceVerdict(
        kind="slow" if is_slow else "hang",
        ranks=(placement.first_rank,),
        nodes=(host.name,),
        confidence="high" if proven else "medium",
        rule="slow_rank" if is_slow else "stuck_rank",
        sentence=f"rank {placement.first_rank} on {host.name}: {fault.name}",
        onset_s=onset_s,
        proven=proven,
        expires_s=None if is_slow else onset_s + world.plan.torch_timeout_s,
        where=f"{fault.name}:{fault.number}",
    )


def diagnosed(world: SimulatedJob, action: Diagnose, took_s: float) -> Diagnosed:
    """Return what checks find."""
    suspects = []
    for node in action.nodes:
        host = world.by_agent.get(node)
        fault = host.fault if host is not None else None
        if host is None or fault is None:
            continue
        if world.rng("found", world.index, host.index).random() < fault.kind.found:
            suspects.append(
                SuspectNode(
                    node=host.name,
                    check="compute",
                    confidence="high",
                    rule="wrong_results",
                    sentence=f"{host.name}: {fault.name}",
                )
            )
    found = {each.node for each in suspects}
    passed = [world.by_agent[node].name for node in action.nodes if node in world.by_agent]
    judged = CheckJudgement(suspects=tuple(suspects), passed=tuple(name for name in passed if name not in found))
    return Diagnosed(attempt=action.attempt, judgement=judged, took_s=took_s)
