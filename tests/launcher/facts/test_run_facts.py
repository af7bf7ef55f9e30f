"""Facts of a run, read from what it left: they say what its status and its pages say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from robust_run.fleet.words import Lost, RunFacts
from robust_run.launcher.operator.reading.run_facts import nobody_lives, read_facts

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"


def sum_of(lost: Lost) -> float:
    return float(sum(msgspec.structs.astuple(lost)))


def lost_s(facts: RunFacts) -> float:
    """What all that is kept of a run says was not effective."""
    return sum_of(facts.other) + sum(sum_of(each.lost) for each in facts.incidents)


def test_of_a_run_of_an_older_version() -> None:
    facts = read_facts(str(RECORDED), 2e9, nobody_lives)
    assert (facts.run_id, facts.name, facts.state, facts.ranks, facts.nodes) == ("a-run", "train.py", "done", 2, 1)
    assert facts.ettr == pytest.approx(0.2556, abs=1e-4), "as robust status says"
    assert facts.steps == 61
    assert facts.node_s == {"node-a": pytest.approx(38.6, abs=0.1)}
    assert [each.began for each in facts.starts] == ["cold", "standby"]
    [incident] = facts.incidents
    assert (incident.kind, incident.rule, incident.component) == ("crash", "died_of_signal", "unknown")
    assert sum_of(incident.lost) == pytest.approx(11.5, abs=0.1), "next step 11.5 s after the onset"
    assert facts.effective_s is not None
    assert lost_s(facts) + facts.effective_s == pytest.approx(facts.until_s - facts.began_s)
