"""How long hosts were part of a job: what its failures are divided by."""

from __future__ import annotations

from robust_run.launcher.model import actions as a
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.operator.views.facts.exposure import Exposure
from robust_run.launcher.records.journal import JournalEntry


class Story:
    """A journal, told by the moments of its lines."""

    def __init__(self) -> None:
        self.exposure = Exposure()

    def at(self, at_s: float, event: e.Event | None = None, action: a.Action | None = None) -> Story:
        self.exposure.take(JournalEntry(at=at_s, mono=at_s, event=event, action=action))
        return self

    def join(self, at_s: float, agent: str, name: str = "") -> Story:
        info = NodeInfo(id=agent, name=name or agent, nproc=8)
        return self.at(at_s, n.NodeJoined(node=info))

    def seconds(self, until_s: float) -> dict[str, float]:
        return self.exposure.seconds(until_s)


def test_a_host_counts_from_when_it_joined_until_it_is_lost_or_the_job_is_over() -> None:
    story = Story().join(0, "a").join(10, "b").at(60, n.NodeLost(node="b", silent_s=4))
    assert story.seconds(100) == {"a": 100, "b": 50}
    story.at(200, action=a.Finish(exit_code=0, outcome="done"))
    assert story.seconds(900) == {"a": 200, "b": 50}


def test_nodes_may_have_joined_before_the_job_began() -> None:
    story = Story().join(0, "a").at(1, n.JobStarted(restart=1)).join(10, "b")
    assert story.seconds(100) == {"a": 100, "b": 90}


def test_an_agent_that_comes_back_goes_on_counting() -> None:
    story = Story().join(0, "a").at(10, n.NodeLost(node="a", silent_s=4)).at(30, n.NodeReturned(node="a"))
    assert story.seconds(50) == {"a": 10 + 20}


def test_two_agents_of_one_host_at_a_time_count_once() -> None:
    story = Story().join(0, "a1", "a").join(10, "a2", "a").at(20, n.NodeLost(node="a1", silent_s=4))
    assert story.seconds(30) == {"a": 30}
    story.at(40, n.NodeLeft(node="a2", reason="told to"))
    assert story.seconds(90) == {"a": 40}


def test_an_evicted_host_does_not_count_until_it_is_readmitted() -> None:
    story = Story().join(0, "a")
    story.at(10, action=a.HostEvicted(name="a", reason="ECC", by="rule gpu.ecc"))
    assert story.seconds(50) == {"a": 10}
    story.at(60, n.NodeReadmitted(name="a"))
    assert story.seconds(70) == {"a": 20}
    story.at(80, n.NodeEvicted(name="a", reason="again")).at(81, n.NodeLeft(node="a", reason="dismissed"))
    assert story.seconds(100) == {"a": 30}


def test_a_host_that_was_evicted_before_it_came_never_counts() -> None:
    story = Story().at(0, n.NodeEvicted(name="a", reason="the list", by="the list", listed=True)).join(1, "a")
    assert story.seconds(100) == {}


def test_an_agent_that_returns_to_the_next_controller_was_there_all_the_time() -> None:
    """Hours may pass between lines while a job trains: the last line before is no end of anything."""
    story = Story().join(0, "a").join(0, "b")
    story.at(1000, n.ControllerResumed(term=2)).at(1001, n.NodeReturned(node="a"))
    assert story.seconds(2000) == {"a": 2000, "b": 0}, "nobody has heard of b since its last line"
    story.at(1100, n.NodeLost(node="b", silent_s=100))
    assert story.seconds(2000) == {"a": 2000, "b": 0}


def test_a_new_agent_of_a_host_takes_the_place_of_the_one_before_the_controller_was_gone() -> None:
    """The job was dead for a day, and was continued: the day counts for nobody."""
    story = Story().join(0, "a1", "a").at(100, e.Tick())
    story.at(86_500, n.ControllerResumed(term=2)).join(86_510, "a2", "a")
    assert story.seconds(86_600) == {"a": 100 + 90}


def test_a_requeued_job_has_other_nodes_and_waited_for_them() -> None:
    story = Story().at(0, n.JobStarted()).join(0, "a").at(100, e.Tick())
    story.at(5000, n.ControllerResumed(term=2, restart=1)).join(5010, "b").join(5010, "a2", "a")
    assert story.seconds(5100) == {"a": 100 + 90, "b": 90}
