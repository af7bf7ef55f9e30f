"""Outputs that must be equal bit by bit: between passes of a device, between devices of a kind, and with the past. Pure.

Silent corruption is intermittent: a device whose passes differ is at fault by that alone. A device that is wrong in
the same way each time is found by the majority of its kind, so it takes three; two that differ cannot tell which is wrong,
unless this fleet's history knows what is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from robust_run.health.checks.history import History, expected_output, output_name
from robust_run.health.checks.types import Ambiguity, Result, SuspectNode

#: A recorded output that fewer nodes gave does not accuse anybody.
LEAST_WITNESSES = 2


class Findings(msgspec.Struct, kw_only=True):
    """What one family of rules found."""

    suspects: list[SuspectNode] = []
    ambiguous: list[Ambiguity] = []
    unchecked: list[str] = []
    notes: list[str] = []


def judge_bits(results: Iterable[Result], history: History) -> Findings:
    """Return what the digests say."""
    found = Findings()
    kinds: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome == "done" and result.digests:
            kinds[(result.check, result.kind)].append(result)
    by_check = Counter(check for check, _ in kinds)
    for (check, kind), voters in kinds.items():
        if by_check[check] > 1:
            names = ", ".join(dict.fromkeys(each.node for each in voters))
            found.notes.append(f"{check}: {names} ({kind}) are compared among themselves only")
        stable = _unstable(voters, found)
        if stable:
            _compare(stable, history, found)
    return found


def _unstable(voters: Sequence[Result], found: Findings) -> list[Result]:
    """Accuse devices whose own passes differ; return the others."""
    unstable = [each for each in voters if len(each.digests) > 1]
    stable = [each for each in voters if len(each.digests) == 1]
    if len(voters) > 1 and 2 * len(unstable) > len(voters):
        check = voters[0].check
        found.unchecked.append(
            f"{check}: passes differ on {len(unstable)} of {len(voters)} devices: the check is not deterministic there"
        )
        return []
    for each in unstable:
        odd = sum(each.digests.values()) - max(each.digests.values())
        found.suspects.append(
            _suspect(
                each,
                "unstable_output",
                f"{odd} of {each.passes} equal passes of {each.check} gave other bits on {_place(each)}",
            )
        )
    return stable


def _compare(voters: Sequence[Result], history: History, found: Findings) -> None:
    """Accuse devices whose output is not that of most others of their kind, or of the past."""
    votes = Counter(_output(each) for each in voters)
    winner, count = votes.most_common(1)[0]
    known = expected_output(history.outputs.get(output_name(voters[0]), ()))
    witnesses = set(known.nodes) - {each.node for each in voters} if known else set()
    if known and len(witnesses) >= LEAST_WITNESSES and 2 * votes[known.digest] <= len(voters):
        _against_history(voters, known.digest, len(witnesses), found)
    elif len(votes) == 1:
        if len(voters) == 1:
            found.notes.append(f"{voters[0].check}: nothing to compare {_place(voters[0])} with but its own passes")
    elif 2 * count > len(voters):
        odd = [each for each in voters if _output(each) != winner]
        right = next(each for each in voters if _output(each) == winner)
        for each in odd:
            most = f"{count} of {len(voters)} devices"
            sentence = f"{_place(each)} gave other bits than {most} in {each.check}{_where(each, right)}"
            found.suspects.append(_suspect(each, "odd_output", sentence))
    else:
        _no_majority(voters, found)


def _against_history(voters: Sequence[Result], digest: str, witnesses: int, found: Findings) -> None:
    for each in voters:
        if _output(each) != digest:
            sentence = (
                f"{_place(each)} gave other bits in {each.check} than {witnesses} other nodes of its kind did before"
            )
            suspect = _suspect(each, "other_output_than_before", sentence)
            found.suspects.append(msgspec.structs.replace(suspect, confidence="medium"))


def _no_majority(voters: Sequence[Result], found: Findings) -> None:
    nodes = tuple(dict.fromkeys(each.node for each in voters))
    outputs = len({_output(each) for each in voters})
    first, other = voters[0], next(each for each in voters if _output(each) != _output(voters[0]))
    if len(voters) == 2:
        both = f"{_place(first)} and {_place(other)} differ in {first.check}{_where(other, first)}"
        which = f"{both}; two cannot tell which is wrong, a third could"
    else:
        many = f"{len(voters)} devices gave {outputs} different outputs in {first.check}"
        which = f"{many}, none of them most: they cannot tell which is right"
    found.ambiguous.append(Ambiguity(nodes=nodes, check=first.check, rule="no_majority", sentence=which))


def _output(result: Result) -> str:
    return next(iter(result.digests))


def _where(odd: Result, right: Result) -> str:
    """Return at which stage of computing they part, as a clause."""
    first = next((name for name, digest in right.stages.items() if odd.stages.get(name) != digest), "")
    return f", from the {first} on" if first else ""


def _place(result: Result) -> str:
    return f"{result.node} {result.device}" if result.device not in ("", "cpu") else result.node


def _suspect(result: Result, rule: str, sentence: str) -> SuspectNode:
    return SuspectNode(
        node=result.node, check=result.check, device=result.device, confidence="high", rule=rule, sentence=sentence
    )
