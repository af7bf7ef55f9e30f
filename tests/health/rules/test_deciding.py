"""No rule may take more of the nodes than it is allowed to: a bad rule or a fleet-wide event must not eat the job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.rules.deciding import decide, forget, hold_back, most_evictions
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Book, Evicted, RuleDecision, RuleLimits
from robust_run.health.sensors.types import Event

BOOK = Book(rules=DEFAULTS)


def decision(node: str, name: str = "gpu.lost") -> RuleDecision:
    event = Event(name=name, kind="alert", subject="GPU 0", detail="gone", at_s=0.0)
    _, found = decide(BOOK, {}, node, event, 0.0)
    assert found is not None
    return found


def evict_all(limits: RuleLimits, nodes: int, every_s: float) -> list[RuleDecision]:
    """The same fault on every node, one after the other."""
    evicted: list[Evicted] = []
    found = []
    for number in range(nodes):
        now_s = number * every_s
        found.append(hold_back(limits, decision(f"n{number}"), nodes, evicted, now_s))
        if found[-1].rung == "evict":
            evicted.append(Evicted(node=f"n{number}", rule="gpu.lost", at_s=now_s))
    return found


@pytest.mark.parametrize(
    ("share", "nodes", "most"),
    [(0.1, 100, 10), (0.1, 10, 1), (0.1, 2, 1), (0.1, 1, 0), (0.0, 100, 0), (1.0, 8, 8), (0.3, 10, 3)],
)
def test_how_many_nodes_a_share_is(share: float, nodes: int, most: int) -> None:
    assert most_evictions(RuleLimits(max_evict_share=share), nodes) == most


def test_an_event_that_hits_the_whole_fleet_takes_only_the_share_and_says_so() -> None:
    found = evict_all(RuleLimits(max_evict_share=0.1), 100, every_s=1.0)
    assert [each.rung for each in found] == ["evict"] * 10 + ["report"] * 90
    assert "rules have evicted 10 of 100 nodes" in found[10].held_back
    assert "--max-evict-share 0.1" in found[10].sentence
    assert "10 of them for gpu.lost" in found[10].held_back


def test_evictions_of_long_ago_do_not_count() -> None:
    found = evict_all(RuleLimits(max_evict_share=0.1, evict_window_s=100.0), 20, every_s=60.0)
    assert all(each.rung == "evict" for each in found)


def test_a_node_that_is_out_already_is_not_counted_twice() -> None:
    evicted = [Evicted(node="n1", rule="gpu.lost", at_s=0.0)]
    assert hold_back(RuleLimits(), decision("n1"), 10, evicted, 1.0).rung == "evict"
    assert hold_back(RuleLimits(), decision("n2"), 10, evicted, 1.0).rung == "report"


def test_only_evictions_are_held_back() -> None:
    asked = decision("n1", "worker.cuda")
    assert hold_back(RuleLimits(max_evict_share=0.0), asked, 10, [], 0.0) is asked


@given(st.floats(0, 1), st.integers(1, 200), st.floats(0, 10))
def test_whatever_happens_no_more_than_the_share_is_taken(share: float, nodes: int, every_s: float) -> None:
    limits = RuleLimits(max_evict_share=share, evict_window_s=1e6)
    taken = sum(each.rung == "evict" for each in evict_all(limits, nodes, every_s))
    assert taken <= max(1 if share > 0 and nodes > 1 else 0, share * nodes + 1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(list(DEFAULTS)), st.sampled_from(["a", "b"])), max_size=60)
)
def test_any_history_of_alerts_can_be_decided_and_nothing_grows_without_end(
    history: list[tuple[float, str, str]],
) -> None:
    counts, now_s = {}, 0.0
    for passed_s, name, node in history:
        now_s += passed_s
        event = Event(name=name, kind="alert", subject="", detail="", at_s=now_s)
        counts, found = decide(BOOK, counts, node, event, now_s)
        assert found is not None
        assert not (found.tolerated and found.rung != "report")
    assert len(counts) <= 2 * len(DEFAULTS)
    assert all(key[1] != "a" for key in forget(counts, "a"))
