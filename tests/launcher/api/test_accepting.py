"""What may be advised of a job is what its controller would carry out at that moment."""

from __future__ import annotations

import msgspec
from simulated_code import version
from stories import Story, one_node, several_nodes

from robust_run.launcher.model.code_events import CodeCaptured, UpdateStaged
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.operator.views.accepting import accepts, accepts_unasked
from robust_run.report.pages.types import Accepts

NOTHING = Accepts()


def of(story: Story, node: str = "") -> Accepts:
    return accepts(story.policy, story.state, node)


def test_the_only_node_of_a_job_is_neither_checked_nor_evicted_while_it_trains() -> None:
    assert of(one_node(), "here") == Accepts(restart=True)


def test_a_job_whose_attempt_is_being_ended_is_not_to_be_restarted() -> None:
    story = several_nodes("a", "b")
    assert of(story).restart
    story.evicts("b")
    assert not of(story).restart
    story.all_end()
    assert not of(story).restart


def test_a_node_that_trains_can_be_evicted_and_not_be_checked() -> None:
    would = of(several_nodes("a", "b"), "b")
    assert (would.check, would.check_all, would.evict, would.readmit, would.join) == (False, False, True, False, True)


def test_a_standby_can_be_checked() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    would = of(story, "spare")
    assert (would.check, would.check_all, would.evict) == (True, True, True)
    assert not of(story, "b").check


def test_a_node_that_was_evicted_and_waits_unused_can_be_checked_and_readmitted() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.evicts("b")
    story.all_end()
    story.starts()
    would = of(story, "b")
    assert (would.check, would.evict, would.readmit) == (True, False, True)


def test_a_node_that_was_lost_is_not_evicted_so_it_is_not_to_be_readmitted() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_lost("b")
    story.ends("a")
    story.starts()
    would = of(story, "b")
    assert (would.check, would.readmit) == (False, False)


def test_a_node_that_the_job_never_had_is_nothing_to_it() -> None:
    would = of(several_nodes("a", "b"), "stranger")
    assert (would.check, would.evict, would.readmit) == (False, False, False)


def test_code_is_updated_where_it_is_kept_and_rolled_back_where_there_is_a_version_to_go_back_to() -> None:
    story = one_node()
    assert not (of(story).update or of(story).rollback or of(story).code_log)
    story.happens(CodeCaptured(version=msgspec.structs.replace(version(1, 0), tree="")))
    assert not of(story).update, "it runs in place"
    story = one_node()
    story.happens(CodeCaptured(version=version(1, 0)))
    assert of(story).update
    assert not of(story).rollback
    story.happens(UpdateStaged(version=version(2, 1), now=True))
    assert of(story).rollback
    assert of(story).code_log


def test_of_a_job_that_is_being_stopped_or_is_over_nothing_is_changed() -> None:
    story = several_nodes("a", "b")
    story.happens(CodeCaptured(version=version(1, 0)))
    story.happens(UpdateStaged(version=version(2, 1), now=False))
    story.happens(SignalReceived(signal=15))
    would = of(story, "b")
    assert (would.update, would.rollback, would.join) == (False, False, False)
    story.all_end()
    assert story.state.phase == "over"
    assert of(story, "b") == Accepts(code_log=True) == accepts_unasked(story.state)
