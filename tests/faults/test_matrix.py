"""Faults strike real jobs, and the verdict names who is at fault: a part of the matrix that is quick enough for every day.

A fixed sample of it by default; with TEST_WAITS=all, as `make test-all` has it, one of each sort. `FAULTS=all` runs every case
once (half an hour). How good verdicts are over layouts, worlds, positions and seeds, and on
held-out cases, is measured by `bench/faults.py`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from harness import Settings, try_out
from hosts import supported
from matrix import ALL, CASES, Run, every_run, sample
from plan import Plan

# How soon a verdict comes is for the bench to say: here others have most of the CPUs.
SETTINGS = Settings(deadline_s=60.0, negative_s=8.0, slow_round_s=1.0, options=("--hang-after", "3"))
ENDS = frozenset({"exit_early", "kill", "exception", "abort", "segfault"})
"""What lets a rank end: on a busy machine that takes seconds, in which its peers wait for it, and that is no hang yet."""

IS_SAMPLE = "all" not in (os.environ.get("FAULTS"), os.environ.get("TEST_WAITS"))
SAMPLE = """
    1 tp_dp first
    6 fsdp first
    8 dp last
    12 tp_dp middle
    18 tp_dp_pp first
    24 dp middle
    R1 dp middle
    R12 dp middle
"""
REST = """
    2 dp middle
    10 fsdp2 middle
    16 tp_dp middle
    19 tp_dp_pp last
    29 fsdp last
    31 dp middle
    33 tp_dp first
    R10 tp_dp_pp middle
"""
QUIET_SAMPLE = """
    36 dp_manual middle
    42 dp middle
"""
QUIET_REST = """
    35 tp_dp_pp middle
    39 tp_dp middle
    43 fsdp middle
"""
QUICK = SAMPLE if IS_SAMPLE else SAMPLE + REST
QUIET = QUIET_SAMPLE if IS_SAMPLE else QUIET_SAMPLE + QUIET_REST


def runs_of(table: str) -> list[Run]:
    cases = {case.number: case for case in CASES}
    lines = [line.split() for line in table.split("\n") if line.strip()]
    return [Run(cases[number], layout, 4, position, 0) for number, layout, position in lines]  # type: ignore[arg-type]


def chosen(table: str, negative: bool) -> list[Run]:
    if os.environ.get("FAULTS") != "all":
        return runs_of(table)
    cases = tuple(case for case in CASES if case.negative == negative)
    return sample([run for run in every_run(cases, (4,), ALL, 1) if run.tuning or run.case.held_out], 1)


@pytest.mark.parametrize("run", chosen(QUICK, negative=False), ids=lambda run: run.name)
def test_a_fault_is_found_and_pinned_on_who_is_at_fault(run: Run, tmp_path: Path) -> None:
    if run.case.hosts > 1 and supported():
        pytest.skip(supported())
    patient = dataclasses.replace(SETTINGS, options=("--hang-after", "20"))
    outcome = try_out(run, tmp_path, patient if run.case.fault in ENDS else SETTINGS)
    assert outcome.fired, outcome
    assert outcome.judged, f"no verdict within {SETTINGS.limit_s(run):g} s: {outcome}"
    assert outcome.exact, outcome
    assert outcome.kind_right, outcome
    assert outcome.action_right, outcome


@pytest.mark.parametrize("run", chosen(QUIET, negative=True), ids=lambda run: run.name)
def test_a_healthy_job_is_left_alone(run: Run, tmp_path: Path) -> None:
    outcome = try_out(run, tmp_path, SETTINGS)
    assert not outcome.problem, outcome
    assert not outcome.judged, outcome
    if run.case.fault.startswith("own_"):
        assert list((tmp_path / "notes").glob("own-*")), "what the program has of its own did not come to work"


def test_every_run_knows_who_is_at_fault() -> None:
    for run in every_run(CASES, (4, 8), ALL, 1):
        assert run.case.negative != bool(run.at_fault), run
        assert all(0 <= rank < run.world for rank in run.at_fault), run
        assert run.case.negative or run.is_exact(run.at_fault[:1] if run.case.who == "link" else run.at_fault), run


def test_what_was_tuned_with_is_no_part_of_what_is_held_out() -> None:
    runs = list(every_run(CASES, (4, 8), ALL, 2))
    tuning = {run.name for run in runs if run.tuning}
    held_out = {run.name for run in runs if not run.tuning}
    assert tuning and held_out and not tuning & held_out
    assert len(tuning) + len(held_out) == len(runs), "two runs have the same name"
    variants = {run.case.fault for run in runs if run.case.held_out} - {run.case.fault for run in runs if run.tuning}
    assert len(variants) >= 6


def test_the_matrix_has_its_33_faults_and_10_negatives_and_their_layouts() -> None:
    numbers = [case.number for case in CASES if not case.held_out]
    assert numbers == [str(number) for number in range(1, 44)]
    assert len({case.number for case in CASES}) == len(CASES)
    assert {layout for case in CASES for layout in case.layouts} == set(ALL)


def test_a_plan_survives_the_environment(tmp_path: Path) -> None:
    plan = Plan(notes=str(tmp_path), layout="fsdp", fault="sleep", ranks=(1, 3), numbers={"extra_s": 0.1})
    assert Plan.from_environment({"FAULT_PLAN": plan.to_json()}) == plan
    assert dataclasses.replace(plan, ranks=()) != plan
