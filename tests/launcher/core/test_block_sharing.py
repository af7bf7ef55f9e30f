"""Who shares blocks of an image with whom, before an attempt and beside it."""

from __future__ import annotations

from stories import Story, gathering

from robust_run.launcher.core.attempts import ARRIVING_S
from robust_run.launcher.core.block_sharing import MOST_AT_EACH, MOST_EARLY
from robust_run.launcher.model.actions import ShareBlocks, StartAttempt
from robust_run.launcher.model.events import Tick


def shared(actions: list[object]) -> list[ShareBlocks]:
    return [each for each in actions if isinstance(each, ShareBlocks)]


def came(story: Story, *names: str) -> list[ShareBlocks]:
    return [each for name in names for each in shared(story.joins(name, blocks=f"{name}:1"))]


def test_nodes_that_come_together_are_told_once() -> None:
    """Each list that is followed by another has nodes begin to fetch what another one fetches then."""
    story = gathering(3, 3)
    assert came(story, "a", "b") == []
    assert came(story, "c") == [ShareBlocks(nodes=("a", "b", "c"), peers=("a:1", "b:1", "c:1"))]


def test_nodes_that_wait_for_one_that_does_not_come_share_meanwhile() -> None:
    story = gathering(4, 4)
    assert came(story, "a", "b") == []
    assert shared(story.happens(Tick(), after_s=ARRIVING_S)) == [ShareBlocks(nodes=("a", "b"), peers=("a:1", "b:1"))]
    assert came(story, "c") == [ShareBlocks(nodes=("a", "b", "c"), peers=("a:1", "b:1", "c:1"))]


def test_one_that_waits_alone_is_told_nothing() -> None:
    story = gathering(3, 3)
    came(story, "a")
    assert not shared(story.happens(Tick(), after_s=ARRIVING_S))


def test_all_know_the_last_one_before_they_are_told_to_start() -> None:
    story = gathering(2, 2)
    came(story, "a")
    assert came(story, "b") == [ShareBlocks(nodes=("a", "b"), peers=("a:1", "b:1"))]


def test_nobody_is_told_anything_where_no_node_gives_blocks() -> None:
    story = gathering(2, 2)
    assert not shared(story.joins("a")) and not shared(story.joins("b"))


def test_a_node_that_stands_by_gets_blocks_and_owns_none() -> None:
    story = gathering(2, 2)
    came(story, "a", "b")
    story.starts()
    assert came(story, "late") == [ShareBlocks(nodes=("late",), peers=("a:1", "b:1"))]


def test_nodes_beside_an_attempt_hear_who_is_in_it() -> None:
    story = gathering(2, 2)
    came(story, "a", "b")
    story.starts()
    came(story, "late")
    story.is_lost("b")
    story.all_end()
    started = story.opens()
    assert [each.peers for each in started if isinstance(each, StartAttempt)] == [("a:1", "late:1")]
    assert not shared(started), "nobody is beside it"
    came(story, "later")
    story.is_lost("late")
    story.all_end()
    came(story, "spare")
    assert shared(story.opens()) == [ShareBlocks(nodes=("spare",), peers=("a:1", "later:1"))]


def test_an_evicted_node_is_told_nothing() -> None:
    story = gathering(2, 3)
    came(story, "a")
    story.evicts("b")
    assert came(story, "b") == []


def test_large_jobs_tell_all_of_all_only_when_they_have_doubled() -> None:
    story = gathering(5000, 5000)
    came(story, "n")
    story.happens(Tick(), after_s=ARRIVING_S)
    told = [came(story, f"n{number}") for number in range(MOST_EARLY + 8)]
    to_all = [len(each[0].nodes) for each in told if each and len(each[0].nodes) > 1]
    assert to_all == [*range(2, MOST_AT_EACH + 1), 32, 64, 128, 256, 512, MOST_EARLY]
    (last,) = told[-1]
    assert len(last.peers) == MOST_EARLY and last.nodes[0] not in last.peers
