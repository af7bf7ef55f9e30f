"""Which node is told to send copies of its memory where, and what is asked and told when one is lost: stories of the core."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from stories import Story, gathering, start_of

from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Action, Finish, Say, StandIn
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.model.resume_events import (
    LookForCheckpoints,
    MemoryGroups,
    MemoryPeer,
    MemoryPeers,
    MemoryReady,
    PartsElsewhere,
    ResumeChosen,
)


def ready(node: str, port: int = 7, attempt: int = 0) -> MemoryReady:
    return MemoryReady(attempt=attempt, node=node, host=f"ip-{node}", port=port)


def runs(*names: str, standbys: tuple[str, ...] = (), **policy: Any) -> Story:
    """The story of a job with memory; its workers run, and no keeper is ready yet."""
    story = gathering(len(names), len(names), **policy)
    for name in (*names, *standbys):
        story.joins(name, has_memory=True)
    story.starts()
    return story


def told(actions: list[Action]) -> dict[str, str]:
    """By node: where it was told to send copies."""
    return {peer.node: peer.name for action in actions if isinstance(action, MemoryPeers) for peer in action.peers}


def all_ready(story: Story, *nodes: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in nodes:
        found |= told(story.happens(ready(node, attempt=story.state.attempt)))
    return found


class Looked(dict[str, Any]):
    """Counts how often all of it is gone through."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


# --- who is told


def test_before_the_first_attempt_no_keeper_that_comes_has_all_others_looked_at() -> None:
    story = gathering(3, 3)
    looked = story.state.memory_at = Looked()
    for name in ("a", "b"):
        story.joins(name, has_memory=True)
        story.happens(ready(name, attempt=-1))
    assert (looked.keys(), looked.times) == ({"a", "b"}, 0)
    story.joins("c", has_memory=True)
    story.starts()
    assert told(story.happens(ready("c"))) != {}


def test_a_node_is_told_when_its_own_keeper_and_its_peer_s_are_ready() -> None:
    story = runs("a", "b")
    assert story.happens(ready("a")) == []
    (order,) = story.happens(ready("b", port=9))
    assert order.attempt == 0
    assert set(order.peers) == {
        MemoryPeer(node="a", host="ip-b", port=9, name="b"),
        MemoryPeer(node="b", host="ip-a", port=7, name="a"),
    }
    assert story.happens(ready("a")) == [], "what was said is not said again"


def test_each_node_keeps_the_copies_of_just_one_other() -> None:
    story = runs("a", "b", "c", "d", "e")
    found = all_ready(story, "a", "b", "c", "d", "e")
    assert sorted(found.values()) == ["a", "b", "c", "d", "e"]
    assert all(node != peer for node, peer in found.items())


def test_nodes_that_share_a_parallel_group_do_not_keep_each_other_s_copies_once_that_is_known() -> None:
    story = runs("a", "b", "c", "d")
    before = all_ready(story, "a", "b", "c", "d")
    assert before == {"a": "c", "b": "d", "c": "a", "d": "b"}
    groups = MemoryGroups(attempt=0, groups=((0, 2), (1, 3)))
    after = told(story.happens(groups))
    assert after in ({"a": "b", "b": "c", "c": "d", "d": "a"}, {"a": "d", "b": "a", "c": "b", "d": "c"})


def test_groups_are_remembered_for_the_next_attempt_of_the_same_shape() -> None:
    story = runs("a", "b", "c", "d")
    all_ready(story, "a", "b", "c", "d")
    after = told(story.happens(MemoryGroups(attempt=0, groups=((0, 2), (1, 3)))))
    restart(story)
    assert told(story.opens()) == after


def test_a_keeper_that_died_and_was_replaced_is_told_anew_and_so_is_who_sends_to_it() -> None:
    story = runs("a", "b")
    all_ready(story, "a", "b")
    assert story.happens(ready("b", port=0)) == []
    assert told(story.happens(ready("b", port=11))) == {"a": "b", "b": "a"}


def test_with_one_node_a_standby_keeps_the_copy() -> None:
    story = runs("a", standbys=("spare",))
    story.happens(ready("a"))
    assert told(story.happens(ready("spare", attempt=-1))) == {"a": "spare"}


def test_a_standby_that_goes_leaves_the_copies_to_another() -> None:
    story = runs("a", standbys=("spare", "other"))
    story.happens(ready("a"))
    story.happens(ready("spare", attempt=-1))
    assert told(story.happens(ready("other", attempt=-1))) == {}
    assert told(story.is_lost("spare")) == {"a": "other"}
    assert told(story.leaves("other")) == {}


def test_with_one_node_and_no_standby_nobody_is_told() -> None:
    story = runs("a")
    assert story.happens(ready("a")) == []


def test_a_node_that_was_cut_off_is_told_again() -> None:
    story = runs("a", "b")
    all_ready(story, "a", "b")
    assert told(story.returns("b")) == {"b": "a"}


def test_a_job_whose_keepers_take_no_copies_is_told_nothing() -> None:
    story = runs("a", "b")
    restart(story)
    assert [type(each).__name__ for each in story.opens()] == ["StartAttempt"]


def restart(story: Story) -> list[Any]:
    """A rank dies; the next attempt is being opened, and it is chosen where it starts from."""
    story.exits(0, -9)
    actions = story.all_end()
    story.happens(ResumeChosen(attempt=story.state.attempt))
    return actions


# --- a node is lost


def lose(story: Story, node: str) -> LookForCheckpoints:
    """A node is lost, the others end; return what is asked."""
    actions = story.is_lost(node)
    for placement in story.state.layout:
        if placement.node in story.state.unended:
            actions = story.ends(placement.node)
    (question,) = (each for each in actions if isinstance(each, LookForCheckpoints))
    return question


def test_nodes_without_ranks_are_asked_too_if_their_keepers_may_hold_copies() -> None:
    story = runs("a", "b", standbys=("spare", "other"))
    all_ready(story, "a", "b", "spare")
    question = lose(story, "b")
    assert question.nodes == ("a", "spare"), "the longest waiting takes its place"
    assert question.holders == () and question.of == 2
    question = lose(story, "spare")
    assert (question.nodes, question.holders) == (("a", "other"), ())


def test_a_node_that_was_evicted_gives_what_it_holds() -> None:
    story = runs("a", "b", standbys=("spare",))
    all_ready(story, "a", "b")
    story.evicts("b")
    actions = story.all_end()
    (question,) = (each for each in actions if isinstance(each, LookForCheckpoints))
    assert (question.nodes, question.holders) == (("a", "spare"), ("b",))


def test_keepers_that_take_no_copies_are_told_nothing_and_give_what_they_hold_when_they_are_evicted() -> None:
    story = runs("a", "b", standbys=("spare",))
    for node in ("a", "b"):
        assert told(story.happens(msgspec.structs.replace(ready(node), takes_copies=False))) == {}
    assert told(story.happens(ready("spare"))) == {}, "nobody sends to it"
    story.evicts("b")
    actions = story.all_end()
    (question,) = (each for each in actions if isinstance(each, LookForCheckpoints))
    assert (question.nodes, question.holders) == (("a", "spare"), ("b",))


def test_a_lost_node_s_keeper_is_forgotten_until_it_says_again_that_it_is_there() -> None:
    story = runs("a", "b", standbys=("spare",))
    all_ready(story, "a", "b")
    question = lose(story, "b")
    assert question.holders == ()
    story.happens(ResumeChosen(attempt=1))
    assert told(story.opens()) == {}, "neither b nor spare is ready"
    story.returns("b")
    assert told(story.happens(ready("spare", attempt=1))) == {"a": "spare", "spare": "a"}


def test_a_node_that_was_lost_and_is_back_gives_what_it_holds() -> None:
    """It repeats what it said of its newest attempt, and then it is back."""
    story = runs("a", "b", standbys=("spare", "other"))
    all_ready(story, "a", "b")
    lose(story, "b")
    story.happens(ResumeChosen(attempt=1))
    story.starts()
    story.happens(ready("b"))
    story.returns("b")
    question = lose(story, "spare")
    assert (question.nodes, question.holders) == (("a", "b"), ())
    assert story.state.memory_at.keys() == {"a", "b"}


# --- what is brought


PART = PartsElsewhere(ranks=(2, 3), of="b", name="a", host="ip-a", port=7)


def test_the_order_to_start_says_what_is_to_be_brought_and_a_second_one_what_that_node_is_to_bring() -> None:
    story = runs("a", "b", standbys=("spare",))
    all_ready(story, "a", "b")
    lose(story, "b")
    story.happens(
        ResumeChosen(
            attempt=1,
            source="peer",
            step=5,
            uuid="m5",
            name="memory-0-5",
            address="rrck+memory://0/5",
            elsewhere=(PART,),
        )
    )
    assert start_of(story.opens()).elsewhere == (PART,)
    assert start_of(story.returns("spare")).elsewhere == (PART,)
    assert start_of(story.returns("a")).elsewhere == ()
    story.node_started("spare")
    story.exits(0, -9)
    story.all_end()
    assert story.state.elsewhere == (), "it was of that attempt"


# --- controllers come and go


def test_a_controller_that_goes_on_knows_who_was_told_what() -> None:
    story = runs("a", "b")
    all_ready(story, "a", "b")
    story.happens(ControllerResumed(term=2))
    again = replay(story.policy, story.told)
    assert again == story.state
    assert told(story.returns("a")) == {"a": "b"}, "it may have missed it"


# --- whatever happens

NODES = ("a", "b", "c", "d")
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["ready", "gone", "lost", "returns", "fails", "groups"]), st.sampled_from(NODES)),
    max_size=25,
)


@given(HAPPENINGS)
def test_nobody_is_ever_told_to_send_to_itself_or_to_who_is_not_there(happenings: list[tuple[str, str]]) -> None:
    story = runs("a", "b", "c", standbys=("d",))
    ports = dict.fromkeys(NODES, 0)
    for number, (what, node) in enumerate(happenings):
        is_there = story.state.members[node].present
        actions: list[Any] = []
        if what == "ready" and is_there:
            ports[node] = ports[node] or 1000 + number
            actions = story.happens(ready(node, ports[node], story.state.attempt))
        elif what == "gone" and is_there:
            ports[node] = 0
            actions = story.happens(ready(node, 0, story.state.attempt))
        elif what == "lost" and is_there and story.state.usable > 3:
            ports[node] = 0
            actions = story.is_lost(node)
        elif what == "returns" and not is_there:
            actions = story.returns(node)
        elif what == "groups":
            actions = story.happens(MemoryGroups(attempt=story.state.attempt, groups=((0, 1),)))
        elif what == "fails" and story.state.phase == "running":
            actions = story.exits(0, -9)
        if story.state.phase == "ending":
            actions += story.all_end()
        if story.state.phase == "opening":
            actions += story.happens(ResumeChosen(attempt=story.state.attempt))
            actions += story.opens()
        for order in actions:
            for peer in order.peers if isinstance(order, MemoryPeers) else ():
                assert peer.name != peer.node
                assert peer.node in story.state.places and peer.name in story.state.places
                assert peer.port == ports[peer.name] != 0
        assert replay(story.policy, story.told) == story.state


# --- the job is over, and a node is gone


def over(story: Story) -> tuple[StandIn, ...]:
    """The job is told to end while it waits for a node; return who writes in the place of those that are gone."""
    actions = story.happens(SignalReceived(signal=15, by="operator"))
    (end,) = (each for each in actions if isinstance(each, Finish))
    return end.stand_ins


def waits_without(story: Story, node: str) -> None:
    """A node is lost, nobody takes its place, and the job waits."""
    story.is_lost(node)
    for placement in story.state.layout:
        if placement.node in story.state.unended:
            story.ends(placement.node)
    assert story.state.phase == "gathering"


def test_who_has_the_copies_of_a_lost_node_writes_them_at_the_end_of_the_job() -> None:
    story = runs("a", "b", "c")
    kept_by = all_ready(story, "a", "b", "c")
    waits_without(story, "b")
    (place,) = (each for each in story.state.layout if each.node == "b")
    ranks = tuple(range(place.first_rank, place.first_rank + place.nproc))
    assert over(story) == (StandIn(node=kept_by["b"], ranks=ranks),)


def test_where_all_nodes_are_there_nobody_stands_in() -> None:
    story = runs("a", "b")
    all_ready(story, "a", "b")
    story.happens(SignalReceived(signal=15, by="operator"))
    actions = story.all_end()
    (end,) = (each for each in actions if isinstance(each, Finish))
    assert end.stand_ins == ()


def test_a_node_that_is_back_writes_its_own() -> None:
    story = runs("a", "b", "c")
    all_ready(story, "a", "b", "c")
    story.is_lost("b")
    story.happens(SignalReceived(signal=15, by="operator"))
    story.ends("a")
    story.returns("b")
    (end,) = (each for each in story.ends("c") if isinstance(each, Finish))
    assert end.stand_ins == ()


def test_where_the_copies_are_lost_too_nobody_stands_in() -> None:
    story = runs("a", "b", "c")
    kept_by = all_ready(story, "a", "b", "c")
    story.is_lost(kept_by["b"])
    waits_without(story, "b")
    assert over(story) == ()


def test_where_nobody_was_told_to_send_nobody_stands_in() -> None:
    story = runs("a", "b", "c")
    all_ready(story, "a", "b")
    waits_without(story, "c")
    assert over(story) == ()


def test_for_a_node_that_left_nobody_stands_in() -> None:
    """A scheduler tells all nodes to end at once: one has left when the job is over, and is writing its own part."""
    story = runs("a", "b", "c")
    all_ready(story, "a", "b", "c")
    story.leaves("b")
    story.happens(SignalReceived(signal=15))
    ends = [each for node in ("a", "b", "c") if node in story.state.unended for each in story.ends(node)]
    (end,) = (each for each in ends if isinstance(each, Finish))
    assert not story.state.members["b"].present, "it has left"
    assert end.stand_ins == ()


def test_a_job_without_a_folder_whose_memory_is_empty_may_have_files_of_its_own() -> None:
    """ "Starts from the beginning" was said of a program that loaded its own checkpoint of step 10."""
    story = runs("a")
    all_ready(story, "a")
    story.exits(0, -9)
    story.all_end()
    said = [each.text for each in story.happens(ResumeChosen(attempt=1)) if isinstance(each, Say)]
    assert said == []
