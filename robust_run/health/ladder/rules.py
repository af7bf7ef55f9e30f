"""The ladder's rules by name (what is not in this table is not a rule), and its decisions in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.health.ladder.types import LadderDecision, State

TITLES = {
    "diagnose": "check the nodes",
    "evict": "evict",
    "reattempt": "try again as it is",
    "rollback": "put earlier code back",
    "swap": "put a standby in the place of",
    "replay": "replay on groups of nodes",
    "stop": "stop",
    "settled": "over",
}


_ALONE = {**TITLES, "evict": "evict nodes", "swap": "put a standby in a node's place"}
"""Where no nodes follow."""


def explain(decisions: Iterable[LadderDecision]) -> list[str]:
    """Return the story of decisions: each with what was done, why, and the rule."""
    lines = []
    for each in decisions:
        what = TITLES[each.rung]
        if each.nodes:
            what += f" {', '.join(each.nodes)}"
        if each.version:
            what += f": {each.version}"
        lines.append(f"{each.number}. {what}: {each.sentence} [{each.rule}: {RULES[each.rule]}]")
        if each.over_evicted:
            lines.append(f"   {len(each.over_evicted)} of them only because it is not known which one is at fault")
    return lines


def everything_known(state: State) -> str:
    """Return all that was tried and found in an episode, as one sentence."""
    tried = ", ".join(_ALONE[rung] for rung in dict.fromkeys(state.rungs)) or "nothing"
    return f"tried: {tried}; known: {'; '.join(state.known) or 'nothing'}"


RULES: dict[str, str] = {
    "unexplained_diagnose": "a failure that nothing explains: all nodes are checked",
    "nan_diagnose": "numbers went wrong: all nodes are checked, bit by bit and for longer",
    "hang_again_diagnose": "ranks hung again, on nodes that are suspect or without progress since: the nodes are checked",
    "suspected_diagnose": "it failed on a node that is suspect for what was before: all nodes are checked",
    "sensor_diagnose": "a sensor saw what asks for tests: the job is suspended, and the checks that fit are made",
    "jump_diagnose": "the loss or gradients jumped and stay there: the job is suspended, and what computes them is checked",
    "slow_diagnose": "a node keeps its peers waiting (--on-slow diagnose): the job is suspended, and rates are measured",
    "evicted_in_vain": "it failed again after nodes were evicted for it: all nodes are checked",
    "certain_evicted": "more nodes are suspect than may be evicted: those that are at fault for certain are, the others stay",
    "suspects_evicted": "nodes that checks found to be at fault are evicted",
    "ambiguous_evicted": "checks cannot tell which of a few nodes is at fault: all of them are evicted, rather than searched",
    "ambiguous_covered": "one of a few nodes is at fault: as many as others take over for are evicted, the worst first",
    "ambiguous_uncovered": "one of a few nodes is at fault, and no other can take over: it is tried again as it is",
    "ambiguous_searched": "one of a few nodes is at fault, and no other can take over: a replay finds it, which costs least",
    "ambiguous_known": "one of a few nodes is at fault, and only one of them was blamed before: that is evicted",
    "ambiguous_kept": "checks cannot tell which of too many nodes is at fault: none is evicted, it is tried again as it is",
    "uncovered_kept": "checks suspect nodes that no other can take over for, and are not certain: they stay, it goes on",
    "suspected_evicted": "it failed again on a node that is blamed again and again, checks found nothing, and another takes over",
    "all_tried": "everything was tried and ranks hang again: it is tried again as it is, as often as --max-restarts allows",
    "too_many_suspects": "more nodes are suspect than may be evicted: what they share is at fault, so none is evicted",
    "lone_node": "the only node is at fault: the job ends",
    "all_passed": "all checks passed: it may pass, so it is tried again as it is",
    "nothing_certain": "checks found nothing that would justify an eviction: it is tried again as it is",
    "failed_again_rollback": "it failed again, and the code has changed since it last did well: the earlier code is put back",
    "swapped_to_test": "it failed again on one node: a standby takes its place, once, to see if the ranks fail there too",
    "failed_again_replay": "it failed again: it is replayed on groups of nodes",
    "rollback_impossible": "the earlier code could not be put back: it is replayed on groups of nodes",
    "replay_found": "nodes that the replay found are evicted",
    "replay_ambiguous_evicted": "the replay leaves a few nodes: all of them are evicted",
    "replay_too_many": "the replay leaves more nodes than may be evicted: the job ends",
    "replay_everywhere": "it fails on all groups of nodes: code or data are at fault, the job ends",
    "replay_clean": "it does not fail in the replay: the job ends with what is known",
    "nothing_left": "everything was tried: the job ends with what is known",
    "evict_helped": "the job got further after nodes were evicted: they were at fault",
    "swap_helped": "the job got further with the standby: the node stays aside, and is used last",
    "reattempt_helped": "the job got further as it was: the fault has passed",
    "rollback_helped": "the job got further with the earlier code: the newer one is at fault, people have to look at it",
}
