"""Which steps all nodes keep in memory and copy: those of the slowest, told to all, and anew in each attempt."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from stories import Story, gathering

from robust_run.launcher.core.step import replay
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.model.resume_events import MemoryNeeds, MemoryStrides

NODES = ("a", "b", "c")


def runs() -> Story:
    story = gathering(3, 3)
    for name in NODES:
        story.joins(name, has_memory=True)
    story.starts()
    return story


def needs(node: str, keeps: int, copies: int, attempt: int = 0) -> MemoryNeeds:
    return MemoryNeeds(attempt=attempt, node=node, keeps=keeps, copies=copies)


def told(actions: list[Any]) -> list[tuple[tuple[str, ...], int, int]]:
    return [(each.nodes, each.keeps, each.copies) for each in actions if isinstance(each, MemoryStrides)]


def test_all_nodes_go_by_what_the_slowest_needs() -> None:
    story = runs()
    assert told(story.happens(needs("a", 1, 1))) == [], "every step is what they go by anyway"
    assert told(story.happens(needs("a", 1, 4))) == [(NODES, 1, 4)]
    assert told(story.happens(needs("b", 1, 2))) == []
    assert told(story.happens(needs("c", 8, 1))) == [(NODES, 8, 8)], "what is not kept cannot be copied"
    assert told(story.happens(needs("c", 1, 1))) == [(NODES, 1, 4)]
    assert told(story.happens(needs("a", 1, 1))) == [(NODES, 1, 2)]


def test_another_attempt_begins_with_every_step_and_late_news_of_the_one_before_do_not_count() -> None:
    story = runs()
    story.happens(needs("a", 4, 4))
    story.exits(0, -9)
    assert told(story.happens(needs("c", 16, 16))) == [], "it ends: nobody keeps anything any more"
    story.all_end()
    assert story.state.memory_strides == (1, 1) and story.state.memory_needs == {}
    assert told(story.happens(needs("a", 8, 8))) == []


def test_a_node_that_was_away_is_told_again() -> None:
    story = runs()
    story.happens(needs("a", 4, 4))
    assert told(story.returns("b")) == [(("b",), 4, 4)]


def test_a_new_controller_knows_what_was_told() -> None:
    story = runs()
    story.happens(needs("a", 2, 4))
    story.happens(ControllerResumed(term=2))
    assert replay(story.policy, story.told) == story.state
    assert told(story.returns("c")) == [(("c",), 2, 4)]


@given(
    said=st.lists(
        st.tuples(st.sampled_from((*NODES, "stranger")), st.sampled_from([0, 1, 2, 8]), st.sampled_from([-1, 1, 4, 16]))
    )
)
def test_whatever_comes_the_last_that_was_told_suits_all(said: list[tuple[str, int, int]]) -> None:
    story = runs()
    newest, last = {}, (1, 1)
    for node, keeps, copies in said:
        orders = told(story.happens(needs(node, keeps, copies)))
        if node in NODES and keeps > 0 and copies > 0:
            newest[node] = keeps, copies
        for nodes, *strides in orders:
            assert nodes == NODES and tuple(strides) != last
            last = tuple(strides)
    keeps = max((each for each, _ in newest.values()), default=1)
    assert last == (keeps, max([keeps, *(each for _, each in newest.values())]))
