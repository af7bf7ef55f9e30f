"""From the results of all nodes to who is at fault, and why. Pure.

Rules, by name:

========================  ==========  ===============================================================================
rule                      confidence  speaks when
========================  ==========  ===============================================================================
wrong_result              high        a device computed or kept something else than what is known to be right
unusable_disk             high        a disk took nothing in: it is full, read-only or failing
hung, crashed             medium      its check program was killed at its limit, or died, and its peers' (if any) were not
could_not_check           low         its check program said why it could not, and others could
fewer_devices             high        it shows fewer devices than most others of at least three
unstable_output           high        equal passes gave different bits                                     (`bits`)
odd_output                high        its bits differ from those of most others of its kind                (`bits`)
other_output_than_before  medium      its bits differ from those that this fleet gave before               (`bits`)
slow_against_history      medium      a rate is far below what this fleet measured before                  (`rates`)
slow_against_peers        medium      a rate is less than half of what the others reached now              (`rates`)
bad_with_all              high        every group of nodes that it was in was bad                          (`groups`)
bad_in_its_group          medium      likewise, but it was in one only, and its partners did well elsewhere (`groups`)
========================  ==========  ===============================================================================

Ambiguous, naming nodes of which one is at fault: no_majority (`bits`), between, one_of_a_group (`groups`). If a rule speaks
against more than half of three nodes or more, it is `fleet_wide`: what they share is at fault, not they.

Nobody is slow, or hung, whose CPUs worked for others meanwhile: that was not checked (`busy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mode

from robust_run.health.checks.bits import judge_bits
from robust_run.health.checks.busy import disturbance, is_starved
from robust_run.health.checks.groups import broken_members, judge_groups
from robust_run.health.checks.history import History, SlownessLimits
from robust_run.health.checks.plan import ALONE
from robust_run.health.checks.rates import judge_rates, slow_groups
from robust_run.health.checks.types import Ambiguity, CheckJudgement, Confidence, NodeFacts, Result, SuspectNode

#: Fewer nodes have no majority.
LEAST_FOR_MAJORITY = 3


def judge(
    results: Sequence[Result],
    facts: Sequence[NodeFacts] = (),
    history: History | None = None,
    limits: SlownessLimits | None = None,
) -> CheckJudgement:
    """Return what the results say about the nodes. `facts`: of all nodes that were to be checked."""
    past, bounds = history or History(), limits or SlownessLimits()
    names = tuple(dict.fromkeys([node.name for node in facts] + sorted({result.node for result in results})))
    place = {name: at for at, name in enumerate(names)}
    results = sorted(results, key=lambda result: place[result.node])  # not in the order in which they happened to end
    results, starved = _without_starved(results)
    single, unchecked = _each_alone(results)
    bits = judge_bits(results, past)
    rates = judge_rates(results, past, bounds)
    met = [each for each in results if not each.unmet]
    broken = broken_members(met)
    known_bad = {suspect.node for suspect in (*single, *broken)}
    slow, slow_unclear = slow_groups(met, past, bounds)
    meetings = judge_groups(met, known_bad, slow)
    found = [*single, *broken, *_fewer_devices(facts), *bits.suspects, *rates.suspects, *meetings.suspects]
    suspects, common = _fleet_wide(_distinct(found), names)
    ambiguous = (*bits.ambiguous, *meetings.ambiguous, *common)
    unclear = (*starved, *bits.unchecked, *unchecked, *rates.unchecked, *slow_unclear, *meetings.unchecked)
    accused = {suspect.node for suspect in suspects} | {name for each in ambiguous for name in each.nodes}
    seen = {result.node for result in results if result.outcome == "done"}
    return CheckJudgement(
        suspects=suspects,
        ambiguous=tuple(ambiguous),
        unchecked=tuple(dict.fromkeys(unclear)),
        notes=(*bits.notes, *rates.notes, *_injected(results)),
        passed=tuple(name for name in names if name not in accused and name in seen),
    )


def _without_starved(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Take out programs that reached their limit where others had the CPUs, and who waited in vain: for them, or for one that
    could not begin.
    """
    starved = [each for each in results if _was_starved(each)]
    absent = [each for each in results if each.group and (each.unmet or _was_starved(each))]
    groups = {(each.check, each.round, each.group) for each in absent}
    vain = [
        _was_starved(each) or (not each.unmet and (each.check, each.round, each.group) in groups) for each in results
    ]
    kept = [each for each, is_vain in zip(results, vain, strict=True) if each.wrong or not is_vain]
    return kept, [f"{each.node}: the check {each.check} hung: {each.problem}; {disturbance(each)}" for each in starved]


def _was_starved(result: Result) -> bool:
    return result.outcome == "hung" and is_starved(result)


def _each_alone(results: Sequence[Result]) -> tuple[list[SuspectNode], list[str]]:
    """Judge each result by itself: what is wrong beyond doubt, and what became of its program."""
    suspects, unchecked = [], []
    made = Counter(each.check for each in results if each.outcome == "done")
    asked = Counter(each.check for each in results)
    for result in results:
        if result.check not in ALONE and result.check != "exchange" and not result.unmet:
            continue
        at = f"{result.node}{f' ({result.device})' if result.device not in ('', 'cpu') else ''}"
        if result.wrong:
            rule = "unusable_disk" if result.check == "disk" and not result.passes else "wrong_result"
            suspects.append(_suspect(result, "high", rule, f"{at}: {result.check}: {result.wrong[0]}"))
        elif result.outcome in ("hung", "crashed"):
            sentence = f"{at}: the check {result.check} {result.outcome}: {result.problem}"
            suspects.append(_suspect(result, "medium", result.outcome, sentence))
        elif result.outcome == "failed":
            sentence = f"{at}: the check {result.check} could not be made: {result.problem}"
            if 2 * made[result.check] > asked[result.check]:
                suspects.append(_suspect(result, "low", "could_not_check", sentence))
            else:
                unchecked.append(sentence)
    return suspects, unchecked


def _suspect(result: Result, confidence: Confidence, rule: str, sentence: str) -> SuspectNode:
    return SuspectNode(
        node=result.node,
        check=result.check,
        device=result.device,
        confidence=confidence,
        rule=rule,
        sentence=sentence,
    )


def _fewer_devices(facts: Sequence[NodeFacts]) -> list[SuspectNode]:
    if len(facts) < LEAST_FOR_MAJORITY:
        return []
    count = {node.name: 0 if node.devices == ("cpu",) else len(node.devices) for node in facts}
    usual = mode(count.values())
    if 2 * sum(value == usual for value in count.values()) <= len(facts):
        return []
    return [
        SuspectNode(
            node=name,
            check="compute",
            confidence="high",
            rule="fewer_devices",
            sentence=f"{name} shows {value} accelerators, most others {usual}",
        )
        for name, value in count.items()
        if value < usual
    ]


def _distinct(suspects: Iterable[SuspectNode]) -> list[SuspectNode]:
    """Return one suspect for each node, device, check and rule: all ranks of a group say the same."""
    found: dict[tuple[str, str, str, str], SuspectNode] = {}
    for each in suspects:
        found.setdefault((each.node, each.device, each.check, each.rule), each)
    return list(found.values())


def _fleet_wide(suspects: list[SuspectNode], names: Sequence[str]) -> tuple[tuple[SuspectNode, ...], list[Ambiguity]]:
    """Take out what is said of so many nodes that it is no fault of theirs."""
    if len(names) < LEAST_FOR_MAJORITY:
        return tuple(suspects), []
    blamed = Counter((check, rule) for _, check, rule in {(each.node, each.check, each.rule) for each in suspects})
    common = {name for name, count in blamed.items() if 2 * count > len(names)}
    found = []
    for check, rule in sorted(common):
        nodes = tuple(dict.fromkeys(each.node for each in suspects if (each.check, each.rule) == (check, rule)))
        found.append(
            Ambiguity(
                nodes=nodes,
                check=check,
                rule="fleet_wide",
                sentence=f"{rule} in {check} on {len(nodes)} of {len(names)} nodes: what they share is at fault, not they",
            )
        )
    return tuple(each for each in suspects if (each.check, each.rule) not in common), found


def _injected(results: Iterable[Result]) -> tuple[str, ...]:
    nodes = tuple(dict.fromkeys(result.node for result in results if result.injected))
    return (f"faults were injected on {', '.join(nodes)}: this is a test, not a finding",) if nodes else ()
