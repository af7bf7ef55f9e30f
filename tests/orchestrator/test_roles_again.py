"""A job that is started again in its run directory, and one that no node is left for: what begins anew, what stays."""

from __future__ import annotations

from pathlib import Path

from robust_run.orchestrator.journal import NAME, Ending, Journal, Line, ending, is_done
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import (
    Action,
    Asked,
    Begun,
    Event,
    Finish,
    JobStarted,
    NodeGone,
    NodeOffered,
    StartMember,
    Tick,
    WorldEnded,
    WorldRuns,
)
from robust_run.orchestrator.nodes.under_slurm import ended_as
from robust_run.orchestrator.roles_file import parse
from robust_run.orchestrator.rules.core import step
from robust_run.slurm.rules.reasons import decide

SPEC = parse(
    """
[roles.data]
command = "data.py"
[roles.trainer]
command = "trainer.py"
ends = "job"
where = "gpu"
[roles.rollout]
command = "rollout.py"
members = 2
fewest = 1
restart = "alone"
"""
)
DATA, TRAINER, ROLLOUT = (MemberName(name, 0) for name in ("data", "trainer", "rollout"))
NODES = (NodeOffered(node="a", slots=9, labels=("gpu",)), NodeOffered(node="b", slots=9))


class Story:
    """Events, one after the other."""

    def __init__(self, patience_s: float | None = None) -> None:
        self.state, self.now_s = JobState(), 0.0
        self.tell(JobStarted(start="first"), *NODES, Begun(patience_s=patience_s))
        for name in (DATA, TRAINER, ROLLOUT, MemberName("rollout", 1)):
            self.tell(WorldRuns(member=name, serial=1))

    def tell(self, *events: Event) -> list[Action]:
        found: list[Action] = []
        for event in events:
            found += step(SPEC, self.state, event, self.now_s)
        return found

    def over(self, code: int = -15) -> list[Action]:
        """All that runs ends."""
        up = [each for each in self.state.members.values() if each.standing == "stopping"]
        return self.tell(*(WorldEnded(member=each.name, serial=each.serial, code=code) for each in up))


def started(actions: list[Action]) -> dict[str, int]:
    return {str(each.member): each.serial for each in actions if isinstance(each, StartMember)}


def test_after_a_requeue_all_begins_again_but_what_has_done_its_work() -> None:
    story = Story()
    story.tell(WorldEnded(member=DATA, serial=1, code=0))
    story.tell(Asked(what="stop", by="SIGTERM"))
    assert [each.code for each in story.over() if isinstance(each, Finish)] == [143]
    assert story.tell(*NODES, Begun()) == [], "it is over"
    assert story.tell(JobStarted(start="second"), NodeOffered(node="c", slots=9, labels=("gpu",))) == []
    assert started(story.tell(Begun())) == {"trainer/0": 2, "rollout/0": 2, "rollout/1": 2}
    assert story.state.members[DATA].standing == "done"
    assert list(story.state.nodes) == ["c"]
    story.tell(WorldRuns(member=TRAINER, serial=2))
    assert story.state.members[TRAINER].generation == 2


def test_what_ended_well_because_it_was_told_to_end_has_not_done_its_work() -> None:
    story = Story()
    story.tell(Asked(what="stop", by="SIGTERM"))
    story.over(code=0)
    story.tell(JobStarted(start="second"), *NODES)
    assert set(started(story.tell(Begun()))) == {"data/0", "trainer/0", "rollout/0", "rollout/1"}


def test_a_start_that_was_cut_off_leaves_nothing_that_runs() -> None:
    """Power was lost: nobody said that anything has ended."""
    story = Story()
    story.tell(JobStarted(start="second"), *NODES)
    assert story.tell(WorldEnded(member=TRAINER, serial=1, code=1)) == [], "what an earlier start says is void"
    assert started(story.tell(Begun()))["trainer/0"] == 2
    assert story.state.members[TRAINER].standing == "starting"


def test_members_that_were_given_up_are_tried_again() -> None:
    story = Story()
    for serial in range(1, 6):
        story.tell(WorldEnded(member=ROLLOUT, serial=serial, code=1))
        story.now_s += 100
        story.tell(Tick())
    assert story.state.members[ROLLOUT].standing == "given_up"
    story.tell(JobStarted(start="second"), *NODES)
    assert started(story.tell(Begun()))["rollout/0"] == 5


def test_members_that_were_asked_for_stay_asked_for() -> None:
    story = Story()
    story.tell(Asked(what="scale", role="rollout", members=1))
    story.tell(JobStarted(start="second"), *NODES)
    assert "rollout/1" not in started(story.tell(Begun()))


def test_a_role_that_no_node_is_left_for_ends_the_job_where_none_comes() -> None:
    story = Story(patience_s=60.0)
    story.tell(NodeGone(node="a"))
    story.now_s += 1.0
    assert "trainer/0 waits for room for 1 workers on 1 node labelled 'gpu': no node has the label" in str(
        story.tell(Tick())
    )
    story.now_s += 59.0
    story.tell(Tick())
    assert story.state.phase == "going"
    story.now_s += 2.0
    story.tell(Tick())
    assert story.state.phase == "ending"
    finish = next(each for each in story.over() if isinstance(each, Finish))
    assert (finish.code, finish.is_short) == (1, True)
    assert "no node comes" in finish.sentence
    story.tell(JobStarted(start="second"))
    assert not story.state.is_short


def test_it_is_waited_for_where_nodes_come_back_and_goes_on_when_one_does() -> None:
    story = Story()
    story.tell(NodeGone(node="a"))
    story.now_s += 1e6
    story.tell(Tick())
    assert story.state.phase == "going"
    assert "trainer/0" in started(story.tell(NODES[0]))
    patient = Story(patience_s=60.0)
    patient.tell(NodeGone(node="a"))
    patient.now_s += 50.0
    assert "trainer/0" in started(patient.tell(Tick(), NODES[0]))
    patient.now_s += 50.0
    patient.tell(Tick())
    assert patient.state.phase == "going"


def test_a_member_for_which_there_is_no_room_now_is_waited_for() -> None:
    """Others use it: they may end."""
    story = Story(patience_s=60.0)
    story.state.nodes["b"].slots = 0
    story.state.nodes["a"].slots = 1
    story.tell(WorldEnded(member=ROLLOUT, serial=1, code=1))
    story.now_s += 1000.0
    story.tell(Tick())
    assert story.state.members[ROLLOUT].standing == "waits"
    assert story.state.phase == "going"


def test_a_role_that_has_enough_members_left_goes_on_with_them() -> None:
    spec = parse('[roles.r]\ncommand = "a.py"\nmembers = 2\nfewest = 1\nrestart = "alone"\ndevices = 1')
    state, now_s = JobState(), 0.0
    for event in (*(NodeOffered(node=name, slots=9, devices=1) for name in "ab"), Begun(patience_s=60.0)):
        step(spec, state, event, now_s)
    step(spec, state, NodeGone(node="a"), now_s)
    for now_s in (10.0, 100.0, 1000.0):
        step(spec, state, Tick(), now_s)
    assert state.phase == "going"


def test_the_journal_says_how_the_newest_start_ended_and_how_often_nodes_were_too_few(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), SPEC, print)
    path, short = str(tmp_path / NAME), Finish(code=1, is_short=True)
    assert ending(str(tmp_path / "none")) is None
    for number in range(3):
        journal.add(Line(at=number * 1000.0, mono=0.0, event=JobStarted(start=str(number))))
        assert ending(path) == Ending(None, number)
        journal.add(Line(at=number * 1000.0 + 70.0, mono=0.0, event=Tick(), actions=(short,)))
        assert ending(path) == Ending(short, number + 1)
    journal.add(Line(at=9000.0, mono=0.0, event=JobStarted(start="x")))
    journal.add(Line(at=9700.0, mono=0.0, event=Tick(), actions=(short,)))
    assert ending(path) == Ending(short, 0), "it got somewhere"
    assert not is_done(str(tmp_path))
    journal.add(Line(at=9800.0, mono=0.0, event=Tick(), actions=(Finish(code=0),)))
    assert is_done(str(tmp_path))
    journal.close()


def test_whether_slurm_is_asked_to_start_it_again() -> None:
    def goes_back(code: int, finish: Finish | None, warned: str = "", short: int = 0) -> bool:
        return decide(ended_as(code, Ending(finish, short), warned), "auto").requeue

    stopped, failed = Finish(code=143, sentence="SIGTERM asked for it"), Finish(code=1, sentence="trainer/0 failed")
    assert goes_back(143, stopped, "time_limit")
    assert not goes_back(143, stopped)
    assert not goes_back(1, failed)
    assert not goes_back(1, failed, "time_limit"), "it would fail again"
    assert not goes_back(0, Finish(code=0), "time_limit")
    assert goes_back(1, Finish(code=1, is_short=True), short=1)
    assert not goes_back(1, Finish(code=1, is_short=True), short=3), "so often in a row"
    assert not goes_back(70, None), "its leader cannot be kept"
