"""Which component a fault is counted for: every word that an incident can have has a row, and what is finer goes first."""

from __future__ import annotations

from typing import get_args

import pytest

from robust_run.fleet.words import Component
from robust_run.health.checks.types import CHECKS
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.types import Trouble
from robust_run.launcher.operator.views.facts import component
from robust_run.launcher.operator.views.facts.component import component_of
from robust_run.report.pages.rules import NCCL_RULES, RULES
from robust_run.report.types import VerdictKind

KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)


def test_each_kind_of_verdict_has_a_row() -> None:
    assert set(component.KINDS) == set(KINDS)


@pytest.mark.parametrize("trouble", [each for each in get_args(Trouble) if each])
def test_each_trouble_of_a_rank_has_a_row(trouble: str) -> None:
    assert trouble in component.TROUBLES


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_each_rule_of_health_has_a_row_or_one_for_its_beginning(name: str) -> None:
    """What a sensor says has a name like `gpu.ecc`; what a rank says is `worker.ecc`, and counts as its trouble."""
    words = name.removeprefix("worker.").split(".")
    assert any(".".join(words[:count]) in component.TROUBLES for count in range(1, len(words) + 1))


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_has_a_row(name: str) -> None:
    assert f"check.{name}" in component.TROUBLES


def test_each_rule_inside_nccl_has_a_row() -> None:
    assert {f"nccl_{rule}" for rule in NCCL_RULES} <= set(component.RULES)


def test_a_rule_without_a_row_goes_by_its_kind() -> None:
    """Rules of programs that wait for each other need none: their kind says it."""
    missing = set(RULES) - set(component.RULES)
    assert {component_of(kind, rule, "") for rule in missing for kind in ("hang", "desync", "mismatch")} == {"program"}  # type: ignore[arg-type]


def test_all_rows_name_components() -> None:
    rows = {*component.TROUBLES.values(), *component.RULES.values(), *component.KINDS.values()}
    assert rows <= set(get_args(Component))


@pytest.mark.parametrize(
    ("kind", "rule", "trouble", "wanted"),
    [
        ("node_fault", "gpu.xid.79", "", "gpu"),
        ("node_fault", "network.link_flap", "", "network"),
        ("node_fault", "worker.ecc", "ecc", "gpu"),
        ("crash", "died_of_signal", "memory.oom_kill", "program"),
        ("crash", "accelerator", "cuda", "gpu"),
        ("crash", "accelerator", "illegal_memory_access", "program"),
        ("comm_stall", "nccl_gpu_rank", "", "gpu"),
        ("comm_stall", "a_rule_of_tomorrow", "", "network"),
        ("node_lost", "node_lost", "", "node"),
        ("node_lost", "node_fenced", "", "network"),
        ("code", "user_exception", "user_exception", "code"),
        ("unknown", "operator", "", "unknown"),
    ],
)
def test_what_is_finer_goes_first(kind: VerdictKind, rule: str, trouble: str, wanted: Component) -> None:
    assert component_of(kind, rule, trouble) == wanted


def test_a_signal_that_somebody_sent_is_no_fault_of_the_program() -> None:
    assert component_of("crash", "died_of_signal", "", was_killed=True) == "unknown"
    assert component_of("crash", "died_of_signal", "", was_killed=False) == "program"
