"""What is shown of a job: counts, places, and the first line that somebody woken at night reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from robust_run.health.types import Event
from robust_run.launcher.core.state import Eviction
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.node_events import NodeEvicted, NodeJoined, NodeLost
from robust_run.launcher.operator.views import show
from robust_run.launcher.operator.views.status import job_view, node_views
from robust_run.launcher.operator.views.status_types import AttemptView, IncidentView, JobView, NodesView, NodeView

Make = Callable[..., Any]


def view(controller: Any, **more: Any) -> JobView:
    return job_view(controller.facts, controller.state(), controller.facts.started_unix_s + 3600, **more)


INCIDENT = IncidentView(attempt=1, at_unix_s=0.0, sentence="rank 5 was killed by SIGKILL on gpu-3", action="relaunch")


def test_the_first_line_says_how_the_job_is_what_it_lacks_and_what_happened_last(make_controller: Make) -> None:
    controller = make_controller().start(6)
    controller.lose(1)
    controller.lose(2)
    controller.tell(NodeEvicted(name="gpu-9", reason="bad memory", by="ann"))
    job = view(controller)
    incident = msgspec.structs.replace(INCIDENT, at_unix_s=job.now_unix_s - 720)
    assert show.headline(msgspec.structs.replace(job, last_incident=incident)) == (
        "running: attempt 2 on 4 nodes (32 ranks), 1 evicted, 2 lost; restarted 2 times, "
        "last: rank 5 was killed by SIGKILL on gpu-3 (12 min ago)"
    )


def test_a_job_whose_ranks_stand_still_is_not_called_running(make_controller: Make) -> None:
    job = view(make_controller().start(4))
    said = "rank 5 never joined all_reduce #9 of the world"
    hang = IncidentView(attempt=0, at_unix_s=job.now_unix_s - 20, kind="hang", sentence=said, action="report")
    hung = msgspec.structs.replace(job, last_incident=hang, stands_still_s=30.0)
    assert show.headline(hung).startswith(
        "HUNG for 30 s: attempt 0 on 4 nodes (32 ranks); not restarted yet, last: rank 5"
    )
    assert (show.tone(hung), show.tone(job)) == ("bad", "good")
    for change in (
        {"stands_still_s": None, "waiting_s": 30.0},  # they went on, or wait for one at work
        {"phase": "ending"},
    ):
        assert not show.is_hung(msgspec.structs.replace(hung, **change)), change


def test_a_quiet_job_says_how_long_it_has_run(make_controller: Make) -> None:
    assert show.headline(view(make_controller().start(5))) == (
        "running: attempt 0 on 4 nodes (32 ranks), 1 standby; up 1 h 0 min"
    )


def test_a_job_that_waits_says_for_how_many(make_controller: Make) -> None:
    controller = make_controller().start(4)
    controller.lose(2)
    assert show.headline(view(controller)) == (
        "waiting for nodes after attempt 0: 3 of 4 needed are here, 1 lost; up 1 h 0 min"
    )


def test_a_job_that_ended_says_how_before_anything_else(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.tell(SignalReceived(signal=15, by="ann"))
    controller.end_attempt()
    job = view(controller, ended_unix_s=controller.facts.started_unix_s + 3000)
    assert show.headline(job) == "stopped with exit code 143 after 1 attempt, 10 min ago: stopped by ann"


def test_a_job_that_failed_says_what_of_and_why_it_was_left_at_that(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.state().phase = "over"
    controller.state().finish = Finish(exit_code=1, outcome="failed", reason="--max-restarts is 0")
    assert show.headline(view(controller, last_incident=INCIDENT)) == (
        "failed with exit code 1 after 1 attempt: rank 5 was killed by SIGKILL on gpu-3; not restarted: --max-restarts is 0"
    )


def test_a_job_whose_controller_is_gone_says_what_continues_it(make_controller: Make) -> None:
    controller = make_controller().start()
    line = show.headline(view(controller, alive=False, resumable=True, note="its controller on gpu-1 is gone"))
    assert line == (
        "its controller on gpu-1 is gone; last known: running: attempt 0 on 4 nodes (32 ranks); "
        f"robust-run --resume {controller.facts.run_directory} continues it"
    )


@pytest.mark.parametrize(
    "phase", ["new", "gathering", "opening", "running", "suspecting", "ending", "stopping", "over"]
)
def test_every_phase_has_words(make_controller: Make, phase: str) -> None:
    job = msgspec.structs.replace(view(make_controller().start()), phase=phase)
    assert len(show.headline(job)) > len("over")
    assert show.status_lines(job)


def test_evicted_and_lost_nodes_are_named_with_the_reason(make_controller: Make) -> None:
    controller = make_controller().start(6)
    controller.tell(NodeEvicted(name="gpu-6", reason="bad memory", by="ann", at_unix_s=controller.facts.started_unix_s))
    controller.tell(NodeLost(node="id5", silent_s=3.5))
    text = "\n".join(show.status_lines(view(controller)))
    assert "evicted: gpu-6: bad memory (by ann, 1 h 0 min ago)" in text
    assert "lost: gpu-5" in text


def test_what_is_not_watched_is_one_plain_line_for_each_node_with_the_reason(make_controller: Make) -> None:
    controller = make_controller().start(4)
    nodes = [member.info for member in controller.state().members.values()]
    stopped = [
        (nodes[0], "mount.hung", "/data", "no answer for 40 s (limit 10 s): a file system"),
        (nodes[0], "traffic.hung", "", "no answer for 12 s (limit 10 s): silence"),
        (nodes[1], "sensors.ended", "", "the sensors' process ended, and ended 4 times: nothing watches\x1b[2J"),
    ]
    for info, name, subject, detail in stopped:
        kind: Any = "note" if name == "sensors.ended" else "alert"
        event = Event(name=name, kind=kind, subject=subject, detail=detail, at_s=0.0)
        controller.tell(HealthSeen(node=info.id, event=event, at_unix_s=controller.facts.started_unix_s))
    lines = [line.strip() for line in show.status_lines(view(controller)) if "blind" in line]
    assert lines == [
        f"blind: {nodes[0].name}: mount /data: no answer for 40 s (limit 10 s): a file system; "
        "traffic: no answer for 12 s (limit 10 s): silence",
        f"blind: {nodes[1].name}: all sensors: the sensors' process ended, and ended 4 times: nothing watches\\x1b[2J",
    ]
    controller.tell(NodeLost(node=nodes[1].id, silent_s=4.0))
    assert [each.node for each in view(controller).blind] == [nodes[0].name]


def test_ten_thousand_evictions_still_fit_a_screen(make_controller: Make) -> None:
    controller = make_controller().start()
    for number in range(10_000):
        controller.state().evicted[f"bad-{number}"] = Eviction(reason="x", by="y")
    lines = show.status_lines(view(controller))
    assert len(lines) < 30
    assert any("9980 more" in line for line in lines)


def test_nodes_at_work_come_first_and_by_rank(make_controller: Make) -> None:
    controller = make_controller().start(6)
    controller.lose(1)
    controller.tell(NodeEvicted(name="gpu-6", reason="bad memory", by="ann"))
    controller.tell(NodeEvicted(name="gpu-77", reason="", by="list"))
    nodes = node_views(controller.state(), now_s=controller.now_s).nodes
    assert [(node.name, node.standing, node.ranks) for node in nodes] == [
        ("gpu-5", "active", "0-7"),  # took the place of gpu-1
        ("gpu-2", "active", "8-15"),
        ("gpu-3", "active", "16-23"),
        ("gpu-4", "active", "24-31"),
        ("gpu-6", "evicted", ""),
        ("gpu-77", "evicted", ""),
        ("gpu-1", "lost", ""),
    ]
    assert nodes[4].reason == "bad memory (by ann)"
    assert nodes[5].reason == "no reason given (by list)"


def test_a_node_that_was_lost_and_came_back_as_a_new_agent_is_shown_once(make_controller: Make) -> None:
    controller = make_controller().start(5)
    controller.lose(1)
    first = controller.state().members["id1"].info
    controller.tell(NodeJoined(node=msgspec.structs.replace(first, id="id1-again")))
    shown = [node for node in node_views(controller.state()).nodes if node.name == "gpu-1"]
    assert [(node.id, node.standing) for node in shown] == [("id1-again", "standby")]
    assert view(controller).nodes_lost == 0


def test_two_agents_on_one_host_are_two_nodes(make_controller: Make) -> None:
    controller = make_controller()
    controller.start(4)
    for member in controller.state().members.values():
        member.info = msgspec.structs.replace(member.info, name="one-host")
    assert len(node_views(controller.state()).nodes) == 4
    assert view(controller).nodes_active == 4


def test_the_table_of_nodes_is_aligned_and_leaves_out_what_no_node_has() -> None:
    nodes = NodesView(
        nodes=(
            NodeView(name="gpu-1", standing="active", ranks="0-7", silent_s=0.42),
            NodeView(name="a-long-name", standing="evicted", reason="bad memory (by ann)"),
        )
    )
    assert show.node_lines(nodes) == [
        "NODE         STANDING  RANKS  SILENT  REASON",
        "gpu-1        active    0-7    0.4 s",
        "a-long-name  evicted                  bad memory (by ann)",
    ]


def test_names_and_reasons_cannot_steer_a_terminal(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.tell(NodeEvicted(name="gpu-1", reason="\x1b[2Jgone\nrobust: all is well", by="\x07"))
    lines = show.status_lines(view(controller)) + show.node_lines(node_views(controller.state()))
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (11100, "3 h 5 min"), (187200, "2 d 4 h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert show.age(seconds) == text


def test_a_view_is_json_that_is_read_back(make_controller: Make) -> None:
    job = view(make_controller().start(), last_incident=INCIDENT)
    assert msgspec.json.decode(msgspec.json.encode(job), type=JobView) == job
    assert msgspec.to_builtins(job)["schema"] == 1


def test_an_outcome_is_in_the_view(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.state().phase, controller.state().finish = "over", Finish(exit_code=7, outcome="failed", reason="why")
    job = view(controller)
    assert (job.outcome, job.exit_code, job.reason) == ("failed", 7, "why")


def test_a_long_verdict_of_a_failed_job_is_said_once(make_controller: Make) -> None:
    controller = make_controller().start()
    verdict = f"rank 1 raised ValueError: {'long words ' * 12}at step 12"
    controller.state().phase = "over"
    reason = f"everything was tried; known: {verdict}; it failed again: {verdict}"
    controller.state().finish = Finish(exit_code=1, outcome="failed", reason=reason)
    incident = msgspec.structs.replace(INCIDENT, sentence=f"{verdict} on vm", reason=reason)
    seen = AttemptView(number=1, ranks=2, nodes=1, began_unix_s=0.0, ended_unix_s=9.0, why=verdict)
    earlier = msgspec.structs.replace(seen, number=0)
    job = msgspec.structs.replace(view(controller, last_incident=incident), attempts=(earlier, seen), attempt=1)
    lines = show.status_lines(job)
    assert len(lines[0]) <= 210
    assert "\n".join(lines).count(verdict) == 1, lines
    assert any("next: " in line and "report.html" in line for line in lines)


def test_nobody_stands_by_for_a_job_that_is_over(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.state().phase = "over"
    controller.state().finish = Finish(exit_code=1, outcome="failed", reason="--max-restarts is 0")
    assert {node.standing for node in node_views(controller.state()).nodes} == {"left"}
