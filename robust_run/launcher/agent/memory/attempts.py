"""An order to start an attempt, in the words of this node's keeper. Pure."""

from __future__ import annotations

from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, Bring, Source
from robust_run.ckpt_io.memory.types import generation_of_name
from robust_run.launcher.model.actions import StartAttempt


def attempt_of(order: StartAttempt) -> AttemptBegins:
    """Return what the keeper is told of an attempt. Of what is older than it starts from, nothing is lost by that."""
    placement, resume = order.placements[0], order.resume
    generation = generation_of_name(resume.name) if resume is not None and resume.source in ("memory", "peer") else None
    return AttemptBegins(
        attempt=order.attempt,
        ranks=tuple(range(placement.first_rank, placement.first_rank + placement.nproc)),
        world_size=order.world_size,
        resumed_step=resume.step if resume is not None and resume.source else None,
        resumed_attempt=generation[0] if generation is not None else None,
    )


def brought(order: StartAttempt) -> tuple[Bring, ...]:
    """Return what the keeper is told before: which of its ranks' parts other nodes have, if they start from such."""
    if not order.elsewhere or order.resume is None:
        return ()
    generation = generation_of_name(order.resume.name)
    if generation is None:
        return ()
    sources = tuple(
        Source(rank, each.host, each.port, each.name, each.within_s) for each in order.elsewhere for rank in each.ranks
    )
    return (Bring(attempt=order.attempt, from_attempt=generation[0], step=generation[1], sources=sources),)
