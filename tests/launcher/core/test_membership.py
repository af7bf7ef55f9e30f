"""What becomes of a job when a node is lost and others stand by, or not: stories of the core."""

from __future__ import annotations

from stories import (
    ending,
    evidence,
    kinds,
    several_nodes,
    told_to_end,
)

from robust_run.launcher.model.actions import OpenStore, RecordIncident, Say, WakeAt
from robust_run.launcher.model.events import Tick
from robust_run.launcher.model.node_events import NodeLost


def test_a_lost_node_ends_the_attempt_and_a_standby_takes_its_place() -> None:
    story = several_nodes("a", "b", "c")
    story.joins("spare")
    assert story.is_lost("b", after_s=100) == [ending()]
    assert story.ends("a") == [], "the next attempt waits for every node"
    incident, follow_up = story.ends("c")
    assert isinstance(incident, RecordIncident)
    assert (incident.symptom, incident.action, incident.reason) == ("node_lost", "evict", "spare takes over")
    assert (incident.verdict.kind, incident.verdict.nodes, incident.verdict.ranks) == ("node_lost", ("b",), (2, 3))
    assert incident.verdict.sentence == "node b stopped answering (3.5 s of silence)"
    assert (incident.onset_at_s, incident.detected_at_s) == (96.5, 100), "trouble began with the last sign of life"
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "spare", "c"], "survivors keep their ranks"


def test_where_the_controller_stood_still_too_the_nodes_are_not_named_without_that() -> None:
    """A whole cluster was suspended, or its virtual machines were moved."""
    story = several_nodes("a", "b")
    story.happens(NodeLost(node="a", silent_s=30.5, stood_s=30.2))
    said, *_ = story.happens(NodeLost(node="b", silent_s=30.5, stood_s=30.2))
    assert isinstance(said, RecordIncident)
    assert said.verdict.sentence == (
        "2 nodes (a, b) stopped answering; the controller had stood still itself for 30.2 s: "
        "was its machine suspended, moved or overloaded?"
    )


def test_the_node_of_rank_0_is_replaced_like_any() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_lost("a")
    assert story.all_end()[-1] == OpenStore(attempt=1, node="spare")
    assert story.world == ["spare", "b"]


def test_standbys_take_over_in_the_order_they_came() -> None:
    story = several_nodes("a", "b", "c")
    story.joins("z-first")
    story.joins("a-second")
    story.is_lost("c")
    story.is_lost("a")
    story.all_end()
    assert story.world == ["z-first", "b", "a-second"]


def test_a_standby_that_is_lost_is_no_incident() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    assert story.is_lost("spare") == [Say(text="node spare stopped answering")]
    assert story.is_lost("spare") == []
    story.is_lost("b")
    assert kinds(story.all_end())[:2] == [RecordIncident, Say], "it waits: nobody is there to take over"


def test_without_standbys_an_elastic_job_goes_on_with_fewer() -> None:
    story = several_nodes("a", "b", "c", fewest=2)
    story.is_lost("b")
    incident, follow_up = story.all_end()
    assert incident.reason == "on 2 instead of 3 nodes"
    assert follow_up == OpenStore(attempt=1, node="a")
    assert [(each.node, each.group_rank, each.first_rank) for each in story.state.layout] == [("a", 0, 0), ("c", 1, 2)]


def test_without_standbys_a_job_of_fixed_size_waits_for_a_node() -> None:
    story = several_nodes("a", "b")
    story.is_lost("b", after_s=10)
    incident, said, wake = story.all_end()
    assert (incident.action, incident.reason) == ("evict", "1 of 2 nodes are left, it waits for more")
    assert said == Say(text="1 of 2 nodes are here; waiting up to 600 s for more")
    assert wake == WakeAt(610)
    assert story.joins("new", after_s=300) == [OpenStore(attempt=1, node="a")]


def test_a_job_that_waits_in_vain_ends() -> None:
    story = several_nodes("a", "b")
    story.is_lost("b")
    story.all_end()
    (finish,) = story.happens(Tick(), after_s=600)
    assert finish.reason == "only 1 of 2 nodes (a) came within 600 s; b lost"
    assert (finish.exit_code, finish.outcome) == (1, "failed")


def test_wait_for_nodes_comes_before_shrinking() -> None:
    story = several_nodes("a", "b", "c", fewest=2, wait_for_nodes_s=60)
    story.is_lost("b")
    incident, *waits = story.all_end()
    assert incident.reason == "2 of 3 nodes are left, it waits for more"
    assert waits == [Say(text="2 of 3 nodes are here; waiting up to 60 s for more"), WakeAt(60)]
    assert story.happens(Tick(), after_s=60) == [OpenStore(attempt=1, node="a")]
    assert story.world == ["a", "c"]


def test_a_node_that_comes_while_the_job_waits_before_shrinking_takes_the_place() -> None:
    story = several_nodes("a", "b", "c", fewest=2, wait_for_nodes_s=60)
    story.is_lost("b")
    story.all_end()
    assert kinds(story.joins("new", after_s=59)) == [OpenStore]
    assert story.world == ["a", "new", "c"]


def test_a_job_that_has_shrunk_does_not_wait_again_when_a_rank_fails() -> None:
    story = several_nodes("a", "b", "c", fewest=2, wait_for_nodes_s=60)
    story.is_lost("b")
    story.all_end()
    story.happens(Tick(), after_s=60)
    story.starts()
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 70))
    assert kinds(story.ends("c")) == [RecordIncident, OpenStore]


def test_wait_for_nodes_bounds_the_wait_of_a_job_that_cannot_shrink() -> None:
    story = several_nodes("a", "b", wait_for_nodes_s=60)
    story.is_lost("b")
    story.all_end()
    assert story.happens(Tick(), after_s=60)[-1].reason == "only 1 of 2 nodes (a) came within 60 s; b lost"


def test_not_waiting_at_all_ends_a_job_that_cannot_shrink_at_once() -> None:
    story = several_nodes("a", "b", wait_for_nodes_s=0)
    story.is_lost("b")
    incident, finish = story.all_end()
    assert incident.action == "stop"
    assert incident.reason == finish.reason == "only 1 of 2 nodes (a) came within 0 s; b lost"


def test_a_late_joiner_grows_an_elastic_job_at_the_next_restart_and_never_by_ending_it() -> None:
    story = several_nodes("a", "b", fewest=1, most=3)
    assert story.state.phase == "running"
    assert story.joins("late") == [Say(text="late joined and stands by")]
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2))
    incident, follow_up = story.ends("b")
    assert incident.reason == "late takes over, 3 instead of 2 nodes"
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "b", "late"]


def test_a_shrunk_job_that_grows_again_keeps_its_ranks() -> None:
    story = several_nodes("a", "b", "c", fewest=2)
    story.is_lost("a")
    story.all_end()
    assert story.world == ["b", "c"]
    story.starts()
    story.joins("a", id="a2")
    story.is_lost("c")
    story.all_end()
    assert story.world == ["b", "a"]


def test_a_lost_node_that_comes_back_in_time_keeps_its_place() -> None:
    story = several_nodes("a", "b", "c")
    story.is_lost("b")
    story.ends("a")
    assert story.returns("b") == [Say(text="b is back and stands by")]
    story.ends("c")
    assert story.world == ["a", "b", "c"]


def test_a_lost_node_that_comes_back_later_stands_by() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_lost("b")
    story.all_end()
    story.starts()
    assert story.returns("b") == [Say(text="b is back and stands by")]
    assert story.state.standing(story.state.members["b"]) == "standby"
    story.is_lost("spare")
    story.all_end()
    assert story.world == ["a", "b"]


def test_a_lost_node_that_comes_back_while_the_job_waits_is_used_at_once() -> None:
    story = several_nodes("a", "b")
    story.is_lost("b")
    story.all_end()
    assert story.returns("b", after_s=60) == [OpenStore(attempt=1, node="a")]


def test_the_return_that_opens_an_attempt_orders_its_store_once() -> None:
    story = several_nodes("a", "b")
    story.is_lost("a")
    story.all_end()
    assert story.returns("a") == [OpenStore(attempt=1, node="a")]


def test_what_a_lost_node_says_of_its_attempt_after_its_return_is_too_late() -> None:
    story = several_nodes("a", "b")
    story.is_lost("b")
    story.returns("b")
    assert story.ends("b", fenced_after_s=3.0) == []
    incident, _ = story.ends("a")
    assert incident.verdict.rule == "node_lost"


def test_two_lost_nodes_are_one_incident() -> None:
    story = several_nodes("a", "b", "c", fewest=1)
    assert story.is_lost("b", after_s=10) == [ending()]
    assert story.is_lost("c", after_s=1) == []
    incident, _ = story.ends("a")
    assert incident.verdict.nodes == ("b", "c")
    assert incident.verdict.sentence == "2 nodes (b, c) stopped answering"
    assert incident.verdict.ranks == (2, 3, 4, 5)


def test_when_the_last_node_is_lost_the_attempt_is_over() -> None:
    story = several_nodes("a", "b")
    assert story.is_lost("a") == [ending()]
    actions = story.is_lost("b")
    assert kinds(actions) == [RecordIncident, Say, WakeAt]
    assert actions[0].reason == "0 of 2 nodes are left, it waits for more"


def test_a_loss_is_never_counted_as_a_restart_without_progress() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    for attempt in range(1, 20):
        story.is_lost("b")
        story.all_end()
        assert story.returns("b") == [OpenStore(attempt=attempt, node="a")]
        story.starts()


def test_losses_between_failures_do_not_use_up_the_restarts() -> None:
    story = several_nodes("a", "b", max_restarts=1)
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2))
    story.ends("b")
    story.starts()
    story.is_lost("b")
    story.all_end()
    story.returns("b")
    story.starts()
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2))
    assert story.ends("b")[-1].reason == "1 restart in a row brought no progress (--max-restarts)"


def test_the_progress_of_an_attempt_is_that_of_the_node_that_got_furthest() -> None:
    story = several_nodes("a", "b", max_restarts=1)
    for attempt in range(1, 10):
        story.exits(0, -9)
        story.ends("b", steps=attempt * 10)
        ranks = evidence(0, -9), told_to_end(1, 2)
        assert story.ends("a", *ranks, steps=1)[-1] == OpenStore(attempt=attempt, node="a")
        story.starts()
