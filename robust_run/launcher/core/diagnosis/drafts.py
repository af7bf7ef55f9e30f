"""What a decision on a sign says of ranks and nodes. Pure."""

from __future__ import annotations

from robust_run.health.rules.types import RuleDecision
from robust_run.health.types import Event
from robust_run.launcher.core.membership import node_of_rank
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.job import VerdictDraft

TRAINING = "training."
NUMBERS = "numbers."


def draft_of(state: JobState, decision: RuleDecision) -> VerdictDraft:
    """Return a decision on a sign as an incident has it."""
    is_training = decision.rule.startswith(TRAINING)
    rank = _rank_in(decision.event, state.world_size) if is_training else None
    ranks = ranks_of(state, decision) if rank is None else (rank,)
    return VerdictDraft(
        kind="nan" if is_training else "node_fault",
        ranks=ranks,
        nodes=() if is_training and rank is None else nodes_of(state, decision),
        confidence=decision.confidence,
        rule=decision.rule,
        sentence=decision.sentence,
        exit_code=1,
        evidence=(said_by(decision.event),),
    )


def ranks_of(state: JobState, decision: RuleDecision) -> tuple[int, ...]:
    """Return the ranks whose numbers are wrong, or some of whose are: its subject is `rank 3` or `ranks 3, 8`."""
    word, _, numbers = decision.event.subject.partition(" ")
    if not decision.rule.startswith(NUMBERS) or word not in ("rank", "ranks"):
        return ()
    found = [each.strip() for each in numbers.split(",")]
    is_number = all(each.isdecimal() and each.isascii() and len(each) < 9 for each in found)
    return tuple(int(each) for each in found if int(each) < state.world_size) if is_number else ()


def nodes_of(state: JobState, decision: RuleDecision) -> tuple[str, ...]:
    """Return the hosts that a decision is about: the one that said it, or those of the ranks that are in question."""
    named = (node_of_rank(state, rank) for rank in ranks_of(state, decision))
    return tuple(dict.fromkeys(filter(None, named))) or (decision.node,)


def said_by(event: Event) -> str:
    """Return what a sensor said as a line."""
    return f"{event.name}: {event.subject}: {event.detail}" if event.subject else f"{event.name}: {event.detail}"


def _rank_in(event: Event, world_size: int) -> int | None:
    """Return the rank that a report is of: its subject is `rank 3`."""
    word, _, number = event.subject.partition(" ")
    if word != "rank" or not (number.isdecimal() and number.isascii() and len(number) < 9):
        return None
    return int(number) if int(number) < world_size else None
