"""How a job of several roles is, in Prometheus' words: `robust roles RUN --prometheus FILE.prom`. Pure.

Labels are the run, names of roles and queues, and words of ours: few, and the same ones while the job lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec

from robust_run.orchestrator.model.state import Standing
from robust_run.report.metrics import MetricFamily, Sample, number
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import RolesView, RoleView


def families(view: RolesView, run: str) -> list[MetricFamily]:
    """Return the families, in the order in which they are written. `run`: name of the run: each sample has it, too."""
    states = get_args(Standing)
    members = tuple(
        Sample((role.name, state), float(sum(member.state == state for member in role.members)))
        for role in view.roles
        for state in states
    )
    found = [
        number("roles_led", "gauge", "Whether the job's leader answers.", float(view.is_led)),
        MetricFamily(
            name="role_members",
            kind="gauge",
            about="Members of a role, by state.",
            labels=("role", "state"),
            samples=members,
        ),
        _of_roles(view, "role_wanted_members", "gauge", "Members that are to run.", lambda role: float(role.wanted)),
        _of_roles(view, "role_ready_members", "gauge", "Members that others may rely on.", _ready),
        _of_roles(view, "role_restarts_total", "counter", "Restarts of members' workers.", _restarts),
        _of_roles(view, "role_idle_ratio", "gauge", "Share of their time that workers waited at queues.", _idle),
        *_queues(view),
    ]
    return [
        msgspec.structs.replace(
            family,
            labels=("run", *family.labels),
            samples=tuple(Sample((run, *sample.labels), sample.value) for sample in family.samples),
        )
        for family in found
    ]


def _ready(role: RoleView) -> float:
    return float(sum(member.ready for member in role.members))


def _restarts(role: RoleView) -> float:
    return float(sum(member.restarts for member in role.members))


def _idle(role: RoleView) -> float | None:
    return role.idle


def _of_roles(
    view: RolesView, name: str, kind: str, about: str, value: Callable[[RoleView], float | None]
) -> MetricFamily:
    known = ((role.name, value(role)) for role in view.roles)
    samples = tuple(Sample((role,), each) for role, each in known if each is not None)
    return MetricFamily(name=name, kind=kind, about=about, labels=("role",), samples=samples)  # type: ignore[arg-type]


def _queues(view: RolesView) -> list[MetricFamily]:
    now = ("waiting", "leased", "kept")
    ever = ("put", "done", "stale", "again", "returned")
    return [
        MetricFamily(
            name="role_queue_items",
            kind="gauge",
            about="Items in a queue, by where they stand.",
            labels=("queue", "state"),
            samples=_counts(view, now),
        ),
        MetricFamily(
            name="role_queue_bytes",
            kind="gauge",
            about="Bytes of all items in a queue.",
            labels=("queue",),
            samples=tuple(Sample((name,), float(each.bytes)) for name, each in sorted(view.queues.items())),
        ),
        MetricFamily(
            name="role_queue_events_total",
            kind="counter",
            about="What became of items: put, done, dropped as too old, put again, given back.",
            labels=("queue", "what"),
            samples=_counts(view, ever),
        ),
    ]


def _counts(view: RolesView, fields: tuple[str, ...]) -> tuple[Sample, ...]:
    def of(counts: Counts, field: str) -> float:
        return float(getattr(counts, field))

    return tuple(
        Sample((name, field), of(counts, field)) for name, counts in sorted(view.queues.items()) for field in fields
    )
