"""How a job ended is told to those who see only the exit code of srun."""

from __future__ import annotations

from pathlib import Path

from slurm_tasks import task_env

from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.node_events import NodeJoined, NodeLost, NodeReturned
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.past import Past, judge
from robust_run.slurm.rules.surroundings import read
from robust_run.slurm.rules.types import SlurmStep
from robust_run.slurm.verdict import _write, sentence

DONE = Finish(exit_code=0, outcome="done")


def step_of(node_id: int) -> SlurmStep:
    step = read(task_env(SLURM_NODEID=str(node_id), SLURMD_NODENAME=f"rr{node_id + 1}"))
    assert step is not None
    return step


def past(*events: Event, finish: Finish = DONE) -> Past:
    nodes = [NodeJoined(node=NodeInfo(id=f"id{number}", name=f"rr{number}", nproc=1)) for number in range(1, 5)]
    entries = [JournalEntry(at=0.0, mono=0.0, event=each) for each in (*nodes, *events)]
    return judge([*entries, JournalEntry(at=0.0, mono=0.0, action=finish)])


def lost(number: int) -> NodeLost:
    return NodeLost(node=f"id{number}", silent_s=3.6)


def test_a_job_that_healed_says_once_why_srun_fails() -> None:
    said = [sentence(past(lost(3)), step_of(node)) for node in range(4)]
    assert said == [
        "the job is done; srun may end with 137 or another error nevertheless, for what was lost on the way: rr3",
        "",
        "",
        "",
    ]
    assert sentence(past(lost(1)), step_of(1)), "the first that is left says it"


def test_an_agent_that_was_replaced_on_its_node_fails_srun_too() -> None:
    again = NodeJoined(node=NodeInfo(id="new", name="rr3", nproc=1))
    assert past(lost(3), again).lost == ()
    assert "rr3" in sentence(past(lost(3), again), step_of(0))


def test_nothing_is_said_of_a_job_that_lost_nothing_or_is_not_done() -> None:
    assert sentence(past(), step_of(0)) == ""
    assert sentence(past(lost(3), NodeReturned(node="id3")), step_of(0)) == ""
    assert sentence(past(lost(3), finish=Finish(exit_code=1, outcome="failed")), step_of(0)) == ""


def test_only_a_file_that_is_there_is_written(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("137, and more\n")
    _write(str(tmp_path / "exit"), 0)
    assert (tmp_path / "exit").read_text() == "0\n"
    _write(str(tmp_path / "other"), 0)
    _write(str(tmp_path), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["exit"]
