"""Leader lookup: where a job with candidates is controlled from, for a node that comes late."""

from __future__ import annotations

import asyncio

from robust_run.clock import Clock
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.control.sockets import spoken
from robust_run.launcher.controller.leadership.choice import name_in_etcd, open_coordinator
from robust_run.launcher.controller.leadership.types import JobFinished, LeaderRecord
from robust_run.launcher.model.job import JobSpec, ManyNodes

#: How long a leader may take to accept a connection.
ANSWER_S = 2.0
#: Between two questions: thousands of nodes may wait for a controller at once.
ASK_AGAIN_S = 5.0


def not_here(many: ManyNodes) -> str:
    """Return why a run cannot be resumed where its nodes do not meet."""
    return (
        f"--resume: this node cannot listen at {spoken(many.host, many.port)}, where the job's nodes look for the "
        "controller: run it on the node that has this address, and see that nothing else uses the port"
    )


async def refuse_if_led(spec: JobSpec, many: ManyNodes, run_path: str, clock: Clock) -> None:
    """Raise UserError if one of the candidates controls the job, or the last one said that it is over."""
    try:
        leader = await who_leads(spec, many, run_path, clock)
    except JobFinished as finished:
        raise UserError(f"--resume {run_path!r}: the job is over: {finished}") from finished
    if leader is not None:
        raise UserError(
            f"--resume {run_path!r}: {leader.host} controls this job at {leader.address} (term {leader.term}); "
            "start this node as it was started the first time, and it joins"
        )


async def where_led(spec: JobSpec, many: ManyNodes, run_path: str, clock: Clock) -> str:
    """Return HOST:PORT of the leader of the job, empty if none can be reached. Raises JobFinished if nobody is to lead."""
    leader = await who_leads(spec, many, run_path, clock)
    return leader.address if leader is not None else ""


async def who_leads(spec: JobSpec, many: ManyNodes, run_path: str, clock: Clock) -> LeaderRecord | None:
    """Return who leads, if it can be reached. Raises JobFinished, PlatformError or UserError where nobody can be asked."""
    coordinator = open_coordinator(many.coordinator, many.tls_ca, name_in_etcd(spec), run_path, clock, lambda _: None)
    try:
        leader = await asyncio.wait_for(coordinator.leader(), ANSWER_S)
    except JobFinished:
        raise
    except (PlatformError, asyncio.TimeoutError):
        return None  # then nobody can be elected either
    finally:
        await coordinator.close()
    return leader if leader is not None and await answers(leader.address) else None


async def answers(address: str) -> bool:
    """Whether HOST:PORT takes a connection of this node."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), ANSWER_S)
    except (OSError, ValueError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
