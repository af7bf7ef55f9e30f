"""Figures of a job of several roles for Prometheus."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from robust_run.orchestrator.people.views.gauges import families
from robust_run.report.metrics import exposition
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import MemberView, RolesView, RoleView


def test_what_prometheus_reads_is_what_people_are_shown() -> None:
    rollouts = (
        MemberView(name="rollout/0", state="running", ready=True, restarts=2),
        MemberView(name="rollout/1", state="pausing"),
    )
    view = RolesView(
        name="dapo",
        phase="going",
        is_led=True,
        roles=(
            RoleView(name="rollout", restart="alone", wanted=2, fewest=1, most=4, members=rollouts, idle=0.25),
            RoleView(name="trainer", restart="together", wanted=1, fewest=1, most=1, members=()),
        ),
        queues={"samples": Counts(waiting=3, leased=1, put=9, done=5, bytes=70)},
    )
    text = exposition(families(view, "run-1"))[0].decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    found = {(each.name, *sorted(each.labels.values())): each.value for each in samples}
    assert all(each.labels["run"] == "run-1" for each in samples), "files of two jobs may lie side by side"
    assert found["robust_run_role_members", "rollout", "run-1", "running"] == 1
    assert found["robust_run_role_members", "pausing", "rollout", "run-1"] == 1
    assert found["robust_run_role_ready_members", "rollout", "run-1"] == 1
    assert found["robust_run_role_restarts_total", "rollout", "run-1"] == 2
    assert found["robust_run_role_idle_ratio", "rollout", "run-1"] == 0.25
    assert ("robust_run_role_idle_ratio", "run-1", "trainer") not in found, "not known is not 0"
    assert found["robust_run_role_queue_items", "run-1", "samples", "waiting"] == 3
    assert found["robust_run_role_queue_events_total", "done", "run-1", "samples"] == 5
    assert found["robust_run_roles_led", "run-1"] == 1
