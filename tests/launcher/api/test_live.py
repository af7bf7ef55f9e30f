"""What somebody who watches is told: odd nodes first, findings, what to do next; small whatever the size of the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dashboards import job_view

from robust_run.errors import PlatformError
from robust_run.launcher.controller.steps import NodeSteps
from robust_run.launcher.model.events import FirstStep
from robust_run.launcher.model.job import Paces
from robust_run.launcher.operator.pages.page_reading import startup_in
from robust_run.launcher.operator.reading.startup_phases import StartupPhases
from robust_run.launcher.operator.views import show
from robust_run.launcher.operator.views.advice import findings_of, next_step
from robust_run.launcher.operator.views.course import Course
from robust_run.launcher.operator.views.live import LiveView, live_nodes, live_view, with_course
from robust_run.launcher.operator.views.status_types import (
    AttemptView,
    EvictedView,
    IncidentView,
    JobView,
    LiveNode,
    NodesView,
    NodeView,
)
from robust_run.report.files import startup as file
from robust_run.report.startup.types import AttemptStartup, RankRow, StartSpan, Startup
from robust_run.report.startup.words import sentence
from robust_run.tracer.pace.types import NodePace, RankPace

Serve = Callable[..., Any]

INCIDENT = IncidentView(attempt=0, at_unix_s=50.0, sentence="rank 5 was killed by SIGKILL", action="relaunch")


def job(**fields: Any) -> JobView:
    return msgspec.structs.replace(job_view(), now_unix_s=10_000.0, **fields)


def steps(own_s: float, step: int = 100) -> NodeSteps:
    return NodeSteps(step, 90.0, 1.0, own_s, 3)


def nodes(*views: NodeView) -> NodesView:
    return NodesView(nodes=views)


# --- nodes


def test_silent_slow_and_lost_nodes_come_first() -> None:
    seen = nodes(
        *(NodeView(name=f"n{number}", standing="active", silent_s=0.1) for number in range(5)),
        NodeView(name="quiet", standing="active", silent_s=2.7),
        NodeView(name="spare", standing="standby"),
        NodeView(name="gone", standing="lost", reason="silent for 3.5 s"),
    )
    own = {f"n{number}": steps(1.0) for number in range(5)} | {"n3": steps(1.4), "n4": steps(1.2)}
    rows = live_nodes(seen, own)
    assert [row.name for row in rows] == ["quiet", "n3", "n4", "gone", "n0", "n1", "n2", "spare"]
    assert rows[0].odd == "silent for 2.7 s"
    assert rows[1].odd == "1.40 times the usual work"
    assert rows[4].odd == ""


def test_a_single_node_is_compared_with_nobody() -> None:
    (row,) = live_nodes(nodes(NodeView(name="n", standing="active")), {"n": steps(9.0)})
    assert (row.slow, row.odd) == (None, "")


def test_a_page_is_cut_out_of_ten_thousand_nodes() -> None:
    rows = [LiveNode(name=f"n{number}", standing="active") for number in range(10_000)]
    view = live_view(job(), rows, (), first=9_990, count=100)
    assert (view.nodes_first, len(view.nodes), view.nodes_total) == (9_990, 10, 10_000)
    assert live_view(job(), rows, (), first=10**9, count=100).nodes_first == 9_999
    assert len(msgspec.json.encode(live_view(job(), rows, (), count=10**6))) < 200_000


# --- what to do next


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"outcome": "done", "phase": "over"}, ""),
        ({"outcome": "failed", "last_incident": INCIDENT}, "robust incident shows what failed"),
        ({"outcome": "failed"}, "robust events tells why"),
        ({"alive": False, "todo": "robust-run --resume /runs/x"}, "robust-run --resume /runs/x"),
        (
            {"phase": "gathering", "nodes_needed": 4, "nodes_active": 0, "nodes_standby": 3},
            "robust-run on one node more",
        ),
        ({"phase": "stopping"}, "robust stop --now"),
        ({"phase": "suspecting"}, "robust why"),
        ({"step_age_s": 300.0, "step_s": 0.5}, "robust why"),
        ({"nodes_needed": 4, "nodes_lost": 1}, "no standby is left"),
        ({"nodes_needed": 4, "nodes_lost": 1, "nodes_standby": 1}, ""),
    ],
)
def test_the_next_step_is_something_to_type(fields: dict[str, Any], said: str) -> None:
    found = next_step(job(**fields))
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [({}, True), ({"step_age_s": 9_990.0}, True), ({"step_age_s": 5.0, "step_s": 1.0}, False), ({"attempt": 1}, False)],
    ids=["no step is counted", "no step since", "it goes on", "another attempt runs"],
)
def test_of_a_stopped_rank_it_is_told_what_lets_it_go_on_until_it_does(fields: dict[str, Any], is_told: bool) -> None:
    stopped = msgspec.structs.replace(INCIDENT, kind="stopped", action="report", at_unix_s=9_900.0)
    told = next_step(job(**{"attempt": 0, "phase": "running", "last_incident": stopped, "step_age_s": None, **fields}))
    assert ("lets it go on" in told) == is_told


def test_an_evicted_node_may_be_what_is_missing() -> None:
    evicted = (EvictedView(name="gpu-7", reason="", by="ann", at_unix_s=0.0),)
    text = next_step(job(phase="gathering", nodes_needed=4, nodes_active=0, nodes_standby=2, evicted=evicted))
    assert text == "robust readmit gpu-7, or start robust-run on 2 nodes more"


def test_restarts_in_a_row_are_a_finding() -> None:
    attempts = tuple(AttemptView(number=each, began_unix_s=9_900.0 + each, ranks=8, nodes=1) for each in range(5))
    busy = job(attempts=attempts)
    assert "robust incident" in next_step(busy)
    assert any("4 restarts" in finding for finding in findings_of(busy, ()))


def test_findings_name_few_and_count_the_rest() -> None:
    rows = [LiveNode(name=f"n{each}", standing="active", silent_s=3.0, odd="silent for 3.0 s") for each in range(50)]
    (finding,) = findings_of(job(), rows)
    assert finding == "n0, n1, n2, n3 and 46 more: no heartbeat for 3.0 s"


def test_a_lost_node_is_no_silent_one() -> None:
    assert findings_of(job(), [LiveNode(name="n", standing="lost", odd="silent for 3.5 s")]) == ()


def test_much_lost_time_is_a_finding() -> None:
    assert "only 40%" in findings_of(job(ettr_hour=0.4), ())[0]
    assert findings_of(job(ettr_hour=0.4, started_unix_s=9_900.0), ()) == (), "it is still starting"


# --- through a real server


def paces(attempt: int, rank: int, own_ms: float) -> Paces:
    pace = RankPace(rank, "n", 1, (own_ms,) * 30, (100.0,) * 30)
    return Paces(pace=NodePace(attempt, "n", 0.0, 1.0, (pace,)), steps=30, since_step_s=0.2)


def test_status_and_live_view_tell_of_steps_attempts_and_the_slow_node(serve: Serve) -> None:
    served = serve()
    controller = served.controller

    def tell() -> None:
        controller.tell(FirstStep(attempt=0, node="id1", at_s=controller.now_s))
        for number in range(1, 5):
            own_ms = 80.0 if number != 3 else 160.0
            controller.book.take(f"gpu-{number}", paces(0, 8 * number - 8, own_ms), controller.now_s)

    served.on_loop(tell)
    view = msgspec.json.decode(served.unix().get("/v1/live", {"count": 2}), type=LiveView)
    assert (view.job.step, view.job.step_s) == (30, pytest.approx(0.1))
    assert [node.name for node in view.nodes] == ["gpu-3", "gpu-1"]
    assert view.nodes[0].slow == pytest.approx(2.0)
    assert (view.nodes_total, view.nodes_odd) == (4, 1)
    assert [each.number for each in view.job.attempts] == [0]
    status = msgspec.json.decode(served.unix().get("/v1/status"), type=JobView)
    assert status.step == 30
    assert show.headline(status).startswith("running: attempt 0 on 4 nodes (32 ranks), step 30")


def test_nonsense_is_refused(serve: Serve) -> None:
    served = serve()
    for query in ({"first": "x"}, {"count": "-1"}, {"count": "9999"}):
        with pytest.raises(PlatformError, match="is no number"):
            served.unix().get("/v1/live", query)
    with pytest.raises(PlatformError, match="is no number"):
        served.unix().get("/metrics", {"nodes": "1000000"})


def test_only_who_asks_gets_nodes_in_labels_and_only_the_slowest(serve: Serve) -> None:
    served = serve()
    served.on_loop(
        lambda: [served.controller.book.take(f"gpu-{each}", paces(0, each, 10.0 * each), 1.0) for each in range(1, 200)]
    )
    assert b"node=" not in served.unix().get("/metrics")
    lines = [line for line in served.unix().get("/metrics", {"nodes": 3}).splitlines() if b"node=" in line]
    assert len(lines) == 3
    assert b'node="gpu-199"' in lines[0]


def test_a_job_that_waits_for_its_first_step_says_so() -> None:
    attempts = (
        AttemptView(number=0, began_unix_s=1.0, ranks=8, nodes=1, startup_s=3.0, ended_unix_s=9.0, why="it died"),
        AttemptView(number=1, began_unix_s=10.0, ranks=8, nodes=1),
    )
    assert "no step yet" in show.headline(job(attempts=attempts, attempt=1))
    assert "no step" not in show.headline(job(attempts=attempts[1:], attempt=1)), (
        "of a job that counts none, nobody knows"
    )


def test_a_start_takes_as_long_in_the_status_as_the_terminal_and_the_report_said(tmp_path: Path) -> None:
    def begins(number: int, at_s: float) -> list[bytes]:
        head = b'{"at":%g,"mono":%g,' % (1000 + at_s, at_s)
        return [
            head + b'"action":{"type":"start_attempt","attempt":%d,"world_size":2,"nodes":1}}' % number,
            head + b'"event":{"type":"first_step","attempt":%d,"at_s":%g}}' % (number, at_s),
        ]

    course = Course()
    for line in (b'{"at":1000,"event":{"type":"job_started"}}', *begins(0, 4.0), *begins(1, 60.0)):
        course.take(line)
    span = StartSpan("imports", 0.0, 3.0)
    row = RankRow(rank=0, node="a", spans=(span,), first_step_s=4.7)
    measured = AttemptStartup(
        attempt=0, began_unix_s=999.5, ranks=2, nodes=1, seen_ranks=2, stepped_ranks=2, complete=True, total_s=4.7, phases=(),
        critical=row,
    )  # fmt: skip
    early = msgspec.structs.replace(measured, attempt=1, stepped_ranks=0, total_s=9.9)
    file.write(str(tmp_path / file.NAME), Startup(run_id="run", attempts=(measured, early)))
    starts = StartupPhases(str(tmp_path)).totals()
    said = [each.startup_s for each in with_course(job(), course, starts=starts).attempts]
    assert said == [4.7, 0.0], "what no rank has ended yet is not measured"
    assert sentence(measured).startswith("first step after 4.7 s")
    assert startup_in(str(tmp_path))[1] == starts, "and on the job's page"
    unmeasured = [each.startup_s for each in with_course(job(), course).attempts]
    assert unmeasured == [4.0, 0.0], "the first since the job was started"
