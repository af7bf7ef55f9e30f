"""Plans, results and judgements in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from robust_run.health.checks.history import JUDGED
from robust_run.health.checks.plan import CheckPlan, CheckRound
from robust_run.health.checks.rates import quantity
from robust_run.health.checks.types import CheckJudgement, CheckName, NodeFacts, Result

WHAT: dict[CheckName, str] = {
    "compute": "matrix products and memory of each device, bit by bit",
    "model": "one training step of a fixed model, the same bits on all nodes",
    "memory": "the host's memory: bandwidth, and whether copies are the same",
    "disk": "writing durably and reading back, in a file without a name",
    "exchange": "all-to-all between the devices of a node",
    "neighbours": "all-gather between two nodes, in shifted pairs",
    "allreduce": "all-reduce between several nodes",
}
MOST_NAMES = 8


class ChecksReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `robust check --json` prints."""

    schema: int = 1
    nodes: tuple[NodeFacts, ...]
    results: tuple[Result, ...]
    judgement: CheckJudgement


def plan_lines(plan: CheckPlan) -> Iterator[str]:
    """Yield a line for each round, and how long it takes."""
    for made in plan.rounds:
        yield f"{made.check:<11} {who(made):<40} {WHAT[made.check]}"
    for sentence in plan.left_out:
        yield f"left out: {sentence}"
    yield f"about {plan.expected_s:.0f} s, at most {plan.limit_s:.0f} s"


def who(made: CheckRound) -> str:
    """Return who takes part in a round."""
    sizes = {len(group) for group in made.groups}
    if sizes == {1}:
        return names([group[0] for group in made.groups])
    return names(["+".join(group) for group in made.groups])


def result_line(result: Result) -> str:
    """Return one result as a line."""
    device = f" {result.device}" if result.device not in ("", "cpu") else ""
    partners = [name for name in result.group if name != result.node]
    place = f"{result.node}{device}{f' with {names(partners)}' if partners else ''}"
    if result.outcome != "done":
        return f"{result.check} on {place}: {result.outcome}: {result.problem}"
    facts = [
        f"{name} {quantity(result.figures[name])}" for name in JUDGED.get(result.check, ()) if name in result.figures
    ]
    facts.append(f"{result.passes} pass{'es' if result.passes != 1 else ''}")
    if len(result.digests) > 1:
        facts.append(f"{len(result.digests)} different outputs")
    if result.wrong:
        facts.append(result.wrong[0])
    return f"{result.check} on {place}: {', '.join(facts)} ({result.took_s:.1f} s)"


def judgement_lines(judgement: CheckJudgement) -> Iterator[str]:
    """Yield what was found, the worst first."""
    for suspect in judgement.suspects:
        yield f"SUSPECT {suspect.node} ({suspect.confidence}, {suspect.rule}): {suspect.sentence}"
    for each in judgement.ambiguous:
        yield f"UNCLEAR {names(each.nodes)} ({each.rule}): {each.sentence}"
    for sentence in judgement.unchecked:
        yield f"not checked: {sentence}"
    for sentence in judgement.notes:
        yield f"note: {sentence}"
    if judgement.passed:
        yield f"nothing was found on {names(judgement.passed)}"


def names(found: Sequence[str]) -> str:
    """Return names, a comma between them, and how many are left out."""
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(found[:MOST_NAMES]) + more
