"""Faults inside NCCL in sentences for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from robust_run.tracer.nccl.blame import EVERYBODY, Blame
from robust_run.tracer.nccl.stragglers import NcclStraggler
from robust_run.tracer.nccl.teams import Team, TeamFlow
from robust_run.tracer.nccl.types import Flow, NcclTrace

#: Ranks that are listed; of more, their number.
LISTED = 8


def ranks_of(worlds: Sequence[int]) -> str:
    """Return `rank 5`, `ranks 4, 5`, `ranks 0-7`."""
    ordered = sorted(worlds)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    if len(ordered) > LISTED:
        return f"{len(ordered)} ranks"
    return "ranks " + ", ".join(str(world) for world in ordered)


def func_name(func: str) -> str:
    """Return what torch calls an operation of NCCL: `all_gather`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", func).lower()


def op_of(team: Team, func: str, seq: int | None) -> str:
    """Return `all_gather #1204 of tp_3`."""
    name = func_name(func) or "an operation"
    number = "" if seq is None or func in ("Send", "Recv", "") else f" #{seq}"
    return f"{name}{number} of {team.name}"


def sentence(team: Team, blame: Blame, flows: Sequence[TeamFlow], func: str, seq: int | None) -> str:
    """Return who is where, and what keeps them. `flows` are those in which the fault was seen."""
    return f"{_where(team, blame, func, seq)}; {_what(team, blame, flows, func)}"


def _where(team: Team, blame: Blame, func: str, seq: int | None) -> str:
    """Return who is in the operation."""
    call = op_of(team, func, seq)
    inside = [
        member.sight.rank
        for number, member in team.members.items()
        if member.sight.alive and _is_in(team, number, func, seq)
    ]
    if len(inside) == team.size:
        return f"all {team.size} ranks are in {call}"
    if not inside:
        return f"{ranks_of(blame.worlds or (0,))} keeps others from {call}" if blame.worlds else f"ranks are in {call}"
    return f"{len(inside)} of {team.size} ranks are in {call}"


def _is_in(team: Team, member: int, func: str, seq: int | None) -> bool:
    if func in team.members[member].latest and seq is not None:
        return team.members[member].latest[func] >= seq
    return any(seen.pending for seen in team.flows.values() if seen.flow.rank == member)


def _what(team: Team, blame: Blame, flows: Sequence[TeamFlow], func: str) -> str:
    """Return what is wrong with those at fault."""
    who = ranks_of(blame.worlds) if blame.worlds else "a member that is not traced"
    if blame.scope == "node":
        who = f"all ranks of {blame.nodes[0]} ({who})" if blame.kind != "network" else f"{blame.nodes[0]} ({who})"
    elif len(blame.worlds) > 1 and blame.kind != "deadlock":
        who = f"one of {who}"
    if blame.rule == EVERYBODY:
        return f"none of their GPUs goes on with it ({ranks_of(blame.worlds)})"
    if blame.kind == "late":
        return f"{who} {_last_call(team, blame, func)}"
    if blame.kind == "dead":
        return f"the process of {who} has ended"
    if blame.kind == "unseen":
        return f"nothing is known of {who}"
    if blame.kind == "deadlock":
        return f"{who} wait for each other in a circle"
    if blame.kind == "gpu":
        return f"{who} {_of_gpu(flows)}"
    if blame.kind == "proxy" and all(cause.unsure for cause in blame.causes):
        return (
            f"{who} has not got what was sent to it: its proxy thread stands still, or the network (sockets?) keeps it"
        )
    return f"{who} {_of_proxy(flows)}" if blame.kind == "proxy" else _of_network(blame, who)


def _last_call(team: Team, blame: Blame, func: str) -> str:
    last = [
        member.latest[func]
        for member in team.members.values()
        if member.sight.rank in blame.worlds and func in member.latest
    ]
    verb = "has" if len(blame.worlds) == 1 else "have"
    return f"{verb} not called it" + (f" (the last was #{max(last)})" if last else "")


def _of_gpu(flows: Sequence[TeamFlow]) -> str:
    unfilled = sum(seen.flow.posted - seen.flow.gpu_ready for seen in flows if seen.flow.direction == "send")
    unread = sum(seen.flow.transmitted - seen.flow.done for seen in flows if seen.flow.direction == "recv")
    if unfilled:
        untold = (
            ", or that the network never took: NCCL before 2.27 does not tell"
            if any(seen.api == 3 for seen in flows)
            else ""
        )
        return f"posted {_chunks(unfilled)} that its GPU never made ready{untold}"
    return f"received {_chunks(unread)} that its GPU never consumed"


def _of_proxy(flows: Sequence[TeamFlow]) -> str:
    receives = [seen for seen in flows if seen.flow.direction == "recv"]
    if any(seen.flow.posted > seen.flow.gpu_ready for seen in receives):
        return "does not take what its network was given: its proxy thread stands still"
    side = "receive buffers to the network" if receives else "send buffers to its GPU"
    if any(seen.flow.gpu_ready > seen.flow.transmitted for seen in flows if seen.flow.direction == "send"):
        return "does not send what its GPU made ready: its proxy thread stands still"
    return f"offers no {side}: its proxy thread stands still, or the network refuses them"


def _of_network(blame: Blame, who: str) -> str:
    if blame.rule == "between-nodes":
        return f"nothing gets through between {' and '.join(blame.nodes)} ({ranks_of(blame.worlds)})"
    if blame.scope != "flow":
        return f"nothing gets through between {who} and the others"
    cause = blame.causes[0]
    if cause.link is None:
        return f"{who} has data that its NIC does not flush"
    sender, receiver = cause.link
    verb = "does not take" if cause.state == "not_transmitted" else "does not deliver"
    lean = f"; it is {who} rather" if blame.suspects else ""
    return f"the network {verb} what rank {sender} sends to rank {receiver}{lean}"


def _chunks(count: int) -> str:
    return f"{count} chunk" + ("s" if count != 1 else "")


def straggler_sentence(team: Team, straggler: NcclStraggler) -> str:
    """Return who is late, in what, how often and by how much."""
    others = "its peer" if team.size == 2 else f"all {team.size - 1} peers"
    call = op_of(team, straggler.func, None)
    verb = "came to" if straggler.at == "start" else "ended"
    return (
        f"rank {straggler.world} {verb} {straggler.late} of the last {straggler.of} {call} later than {others}, "
        f"by {straggler.late_s:.1f} s (newest: #{straggler.seq})"
    )


def flow_line(seen: TeamFlow) -> str:
    """Return the counters of a flow, for readers who want to check."""
    return f"rank {seen.world} {_counters(seen.flow)}"


def _counters(flow: Flow) -> str:
    ends = f"{flow.rank} -> {flow.peer}" if flow.direction == "send" else f"{flow.peer} -> {flow.rank}"
    return (
        f"{flow.direction} (member {ends}, channel {flow.channel}): posted {flow.posted}, "
        f"gpu_ready {flow.gpu_ready}, transmitted {flow.transmitted}, done {flow.done} of {flow.steps}"
    )


def in_flight_lines(trace: NcclTrace) -> list[str]:
    """Return what one rank has in flight, for people; `LISTED` connections at the most."""
    names = {one.serial: one.name or f"communicator {one.hash:x}" for one in trace.communicators}
    busy = [flow for flow in trace.flows if flow.open_ops and not flow.foreign]
    ops = {op.number: op for op in trace.ops}
    lines = []
    for flow in busy[:LISTED]:
        op = None if flow.op is None else ops.get(flow.op)
        call = "an operation" if op is None else f"{func_name(op.func)} #{op.seq}"
        lines.append(f"NCCL: {call} of {names.get(flow.comm, 'a communicator')}, {_counters(flow)}")
    return [*lines, f"NCCL: {len(busy) - LISTED} more in flight"] if len(busy) > LISTED else lines
