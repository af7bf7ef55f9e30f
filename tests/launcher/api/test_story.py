"""The journal as people read it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.job import NodeInfo, Progress
from robust_run.launcher.operator.commands.story import Story
from robust_run.launcher.records.journal import JournalEntry
from robust_run.tracer.flight.lag import Lag

Make = Callable[..., Any]


def told(controller: Any, **how: Any) -> list[str]:
    """Return the story without its times."""
    story = Story(local=time.gmtime, **how)
    lines = Path(controller.journal_path).read_bytes().splitlines()[1:]
    return [text[10:] for line in lines for text in story.tell(line) if not text.startswith("---")]


def test_a_job_that_lost_a_node_reads_as_a_story(make_controller: Make) -> None:
    controller = make_controller().start(5)
    controller.tell(n.NodeEvicted(name="gpu-2", reason="bad memory", by="ann"))
    controller.end_attempt()
    controller.open()
    controller.tell(e.FirstStep(attempt=1, node="id3", at_s=1.0))
    controller.tell(e.FirstStep(attempt=1, node="id4", at_s=1.0))
    controller.tell(e.RankExited(attempt=1, rank=17, exit_code=-9))
    controller.tell(e.SignalReceived(signal=15, by="ben"))
    controller.end_attempt()
    story = told(controller)
    assert story[0] == "-             the job starts"
    assert "gpu-1         joined with 8 workers (10.0.0.1)" in story
    assert "-             attempt 0 starts: 32 ranks on 4 nodes (gpu-1, gpu-2, gpu-3, gpu-4)" in story
    assert "gpu-2         evicted by ann: bad memory" in story
    assert any(line.startswith("gpu-2         incident: ") for line in story)
    assert "-             attempt 1 starts: 32 ranks on 4 nodes (gpu-1, gpu-5, gpu-3, gpu-4)" in story
    assert [line for line in story if "first step" in line] == ["gpu-3         attempt 1 made its first step"]
    assert "gpu-3         rank 17 was killed by SIGKILL (signal 9)" in story
    assert "-             told to end by ben" in story
    assert story[-1] == "-             the job is over: stopped, exit code 143: stopped by ben"


def test_what_only_a_developer_wants_is_told_on_request(make_controller: Make) -> None:
    controller = make_controller().start(4)
    controller.tell(e.WarmReady(pid=7, modules=("torch",), took_s=1.0, node="id2"))
    controller.tell(e.Tick())
    assert not any("warm" in line or "tick" in line for line in told(controller))
    whole = told(controller, everything=True)
    assert any(line.startswith("gpu-2         warm_ready {") for line in whole)
    assert len(whole) == len(Path(controller.journal_path).read_bytes().splitlines()) - 1


def test_why_ranks_are_looked_at_is_told_by_who_saw_it(make_controller: Make) -> None:
    controller = make_controller().start(4)
    lag = Lag(rank=9, group="dp", completed=5, behind=40, rounds=4, peers=3)
    controller.tell(e.HangSuspected(attempt=0, rank=9, waited_s=0.0, reason=lag.words))
    controller.tell(e.HangSuspected(attempt=0, node="id1", rank=0, waited_s=0.0, reason="throughput has halved"))
    story = told(controller)
    assert (
        "gpu-2         rank 9, torch's flight recorder: it is 40 operations behind in group dp:"
        " it has completed #5, and 3 of its members go on"
    ) in story
    assert "gpu-1         rank 0, inside NCCL: throughput has halved" in story


INFO = NodeInfo(id="n", name="gpu-1", nproc=8)

EVERY_EVENT = [
    n.JobStarted(),
    n.NodeJoined(node=INFO),
    n.NodeReturned(node="n"),
    n.NodeLost(node="n", silent_s=3.5),
    n.NodeLeft(node="n", reason="SIGTERM"),
    n.NodeToldToLeave(node="n", signal=15),
    n.NodeEvicted(name="gpu-1", reason="", by="ann"),
    n.NodeReadmitted(name="gpu-1"),
    n.RestartAsked(),
    n.ControllerResumed(term=2, host="gpu-2"),
    e.RankExited(attempt=0, rank=3, exit_code=1),
    e.SpawnFailed(attempt=0, rank=3, message="no memory", node="n"),
    e.StoreLost(attempt=0, detail="it died", node="n"),
    e.FirstStep(attempt=0, node="n", at_s=1.0),
    e.AttemptEnded(attempt=0, node="n", started_at_s=0.0, ranks=(), progress=Progress(), fenced_after_s=3.1),
    e.SignalReceived(signal=15, again=True),
    e.LimitNear(),
    e.SignalPassedOn(signal=10, ranks=(1,), node="n"),
    e.GuardLost(),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_every_event_that_matters_has_words(make_controller: Make, event: e.Event) -> None:
    controller = make_controller()
    controller.tell(event)
    assert told(controller)[0].isprintable()


def test_a_journal_that_begins_with_a_takeover_has_names_all_the_same() -> None:
    story = Story(local=time.gmtime)
    returned = b'{"at":0,"mono":0,"event":{"type":"node_returned","node":"ae2b","name":"gpu-1"}}'
    lost = b'{"at":9,"mono":9,"event":{"type":"node_lost","node":"ae2b","silent_s":3.5}}'
    assert story.tell(returned)[-1] == "00:00:00  gpu-1         is connected again"
    assert story.tell(lost)[-1] == "00:00:09  gpu-1         lost: silent for 3.5 s"


def test_the_day_is_said_where_it_changes() -> None:
    story = Story(local=time.gmtime)
    lines = [b'{"at":%d,"mono":%d,"event":{"type":"job_started"}}' % (at, at) for at in (0, 60, 90_000)]
    assert [text for line in lines for text in story.tell(line)] == [
        "--- 1970-01-01 ---",
        "00:00:00  -             the job starts",
        "00:01:00  -             the job starts",
        "--- 1970-01-02 ---",
        "01:00:00  -             the job starts",
    ]


def test_a_line_of_a_newer_robust_run_is_passed_over(make_controller: Make) -> None:
    line = b'{"at":0,"mono":0,"event":{"type":"something_new","x":"\\u001b[2J"}}'
    assert Story().tell(line) == []
    assert all(text.isprintable() for text in Story(everything=True).tell(line))


def line_at(at_s: float, mono_s: float, event: e.Event, term: int = 1) -> bytes:
    return msgspec.json.encode(JournalEntry(at=at_s, mono=mono_s, term=term, event=event))


def test_where_the_clock_was_set_that_times_are_of_a_line_says_so() -> None:
    story = Story(local=time.gmtime)
    ready = e.WarmReady(pid=7, modules=(), took_s=1.0, node="a")
    exited = e.RankExited(attempt=0, rank=1, exit_code=-9)
    assert len(story.tell(line_at(1e9, 100.0, exited))) == 2, "the day, and what happened"
    assert len(story.tell(line_at(1e9 + 60.5, 160.0, exited))) == 1, "it is corrected all the time"
    assert story.tell(line_at(1e9 - 4080.0, 220.0, ready)) == [
        "00:38:40  -             the clock of the controller's node was set back by 70 min"
    ]
    assert len(story.tell(line_at(1e9 - 4070.0, 230.0, exited))) == 1


def test_a_machine_that_was_suspended_looks_like_a_clock_that_was_set_forward() -> None:
    story = Story(local=time.gmtime)
    exited = e.RankExited(attempt=0, rank=1, exit_code=-9)
    story.tell(line_at(1e9, 100.0, exited))
    (said, _) = story.tell(line_at(1e9 + 4260.0, 160.0, exited))
    assert said.endswith(
        "the clock of the controller's node was set forward by 70 min, or its machine was suspended for so long"
    )


def test_another_controller_has_another_clock() -> None:
    story = Story(local=time.gmtime)
    resumed, later = n.ControllerResumed(term=2), n.ControllerResumed(term=2, restart=1)
    story.tell(line_at(1e9, 100.0, n.JobStarted()))
    told = [
        story.tell(line_at(1e9 + at_s, mono_s, event, term=2))
        for at_s, mono_s, event in ((9, 7.0, resumed), (19, 1.0, later))
    ]
    assert not any("clock" in line for lines in told for line in lines)
