"""Checks of several nodes at once: from bad groups to the node that explains them. Pure.

A group is bad if a member hung, died or said why it could not, if data arrived wrong, or if it was too slow. Members that
are known to be bad explain it. Of the others, a member that did well in another group is cleared; those left explain it.
Slowness comes last: a machine that is busy is slow for a moment, and what arrives wrong does so at any speed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from robust_run.health.checks.bits import Findings
from robust_run.health.checks.rates import GroupKey
from robust_run.health.checks.types import Ambiguity, CheckName, Result, SuspectNode

BADNESS = {"done": 0, "skipped": 0, "failed": 1, "crashed": 2, "hung": 3}


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """How one group did."""

    check: CheckName
    nodes: tuple[str, ...]
    problem: str
    """Empty: it did well, as far as speed is not concerned."""
    slow: str = ""
    """Empty: it was fast enough."""
    explained: bool = False
    """By a member that is known to be bad."""


def judge_groups(results: Iterable[Result], known_bad: Collection[str], slow: Mapping[GroupKey, str]) -> Findings:
    """Return which nodes are at fault in checks of several nodes. `known_bad`: nodes that are accused already."""
    found = Findings()
    by_check: dict[CheckName, list[Met]] = defaultdict(list)
    for met in _meetings(results, known_bad, slow):
        by_check[met.check].append(met)
    for check, meetings in by_check.items():
        _explain(check, meetings, known_bad, found)
    return found


def broken_members(results: Iterable[Result]) -> list[SuspectNode]:
    """Return members that hung or died while others of their group only said that they lost them.

    Who hangs until it is killed is worse than who dies, for a library may abort a program that waits for its peers in vain.
    A group in which all did the same accuses no member by itself.
    """
    found = []
    for each in _by_group(results).values():
        worst = max(BADNESS[result.outcome] for result in each)
        bad = [result for result in each if BADNESS[result.outcome] == worst]
        if worst >= BADNESS["crashed"] and {result.node for result in bad} != set(each[0].group):
            for result in bad:
                sentence = f"{result.node}: the check {result.check} with others {result.outcome}: {result.problem}"
                found.append(
                    SuspectNode(
                        node=result.node,
                        check=result.check,
                        device=result.device,
                        confidence="medium",
                        rule=result.outcome,
                        sentence=sentence,
                    )
                )
    return found


def _by_group(results: Iterable[Result]) -> dict[GroupKey, list[Result]]:
    members: dict[GroupKey, list[Result]] = defaultdict(list)
    for result in results:
        if len(result.group) > 1:
            members[(result.check, result.round, result.group)].append(result)
    return members


def _meetings(results: Iterable[Result], known_bad: Collection[str], slow: Mapping[GroupKey, str]) -> list[Met]:
    return [
        Met(
            check=each[0].check,
            nodes=name[2],
            problem=_problem(each),
            slow=slow.get(name, ""),
            explained=any(node in known_bad for node in name[2]),
        )
        for name, each in _by_group(results).items()
    ]


def _problem(results: Iterable[Result]) -> str:
    for result in results:
        if result.wrong:
            return f"{result.node} says: {result.wrong[0]}"
    for result in results:
        if result.outcome not in ("done", "skipped"):
            return f"{result.node} says: {result.problem}"
    return ""


def _explain(check: CheckName, meetings: list[Met], known_bad: Collection[str], found: Findings) -> None:
    accused = _accuse(check, meetings, found)
    replace = msgspec.structs.replace
    either = [replace(met, problem=met.problem or met.slow) for met in meetings]
    _accuse(
        check,
        [
            replace(now, explained=now.explained or bool(met.problem) or not accused.isdisjoint(met.nodes))
            for met, now in zip(meetings, either, strict=True)
        ],
        found,
    )
    known = {node for met in either if not (met.problem and met.explained) for node in met.nodes}
    _lost_partners(check, either, known.union(known_bad), found)


def _accuse(check: CheckName, meetings: list[Met], found: Findings) -> set[str]:
    """Note who is at fault for groups with a problem that nobody explains yet; return whom one is sure of."""
    well = {node for met in meetings if not met.problem for node in met.nodes}
    bad = [met for met in meetings if met.problem and not met.explained]
    times = Counter(node for met in bad for node in met.nodes)
    accused: set[str] = set()
    for met in sorted(bad, key=lambda each: min(sum(node not in well for node in each.nodes), 2) != 1):
        if accused.intersection(met.nodes):
            continue
        left = [node for node in met.nodes if node not in well]
        most = max((times[node] for node in left), default=0)
        worst = [node for node in left if times[node] == most]
        if len(worst) == 1 and (most > 1 or len(left) == 1):
            accused.add(worst[0])
            found.suspects.append(_suspect(check, worst[0], met, most))
        else:
            nodes, rule, sentence = _unclear(check, met, worst)
            found.ambiguous.append(Ambiguity(nodes=nodes, check=check, rule=rule, sentence=sentence))
    return accused


def _suspect(check: CheckName, node: str, met: Met, times: int) -> SuspectNode:
    others = ", ".join(name for name in met.nodes if name != node)
    if times > 1:
        sentence = f"{node}: {check}: all {times} groups that it was in were bad; with {others}: {met.problem}"
    else:
        sentence = f"{node}: {check}: bad with {others}, who did well with others: {met.problem}"
    return SuspectNode(
        node=node,
        check=check,
        confidence="high" if times > 1 else "medium",
        rule="bad_with_all" if times > 1 else "bad_in_its_group",
        sentence=sentence,
    )


def _unclear(check: CheckName, met: Met, left: list[str]) -> tuple[tuple[str, ...], str, str]:
    if not left:
        names = " and ".join(met.nodes)
        sentence = f"{check}: {names} did well with others, but not together: what connects them, or a fault that comes and goes"
        return met.nodes, "between", f"{sentence}: {met.problem}"
    return (
        tuple(left),
        "one_of_a_group",
        f"{check}: it is one of {', '.join(left)}, or what connects them: {met.problem}",
    )


def _lost_partners(check: CheckName, meetings: list[Met], known: Collection[str], found: Findings) -> None:
    """Say who could not be checked because of others; `known`: nodes of which something else is said."""
    for node in dict.fromkeys(node for met in meetings if met.problem and met.explained for node in met.nodes):
        if node not in known:
            found.unchecked.append(f"{node}: {check} says nothing: whom it was to meet was bad")
