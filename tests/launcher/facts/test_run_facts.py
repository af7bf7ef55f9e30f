"""Facts of a run, read from what it left: they say what its status and its pages say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fact_ground import lost_s, sum_of

from robust_run.launcher.operator.reading.run_facts import nobody_lives, read_facts
from robust_run.report.files import usage
from robust_run.report.usage import NodeSpread, UsagePoint

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"


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


@pytest.mark.parametrize(("seen", "gpus"), [("gpu_busy_percent", 2), ("cpu_percent", 0)])
def test_a_rank_is_taken_to_have_a_gpu_where_gpus_were_seen(tmp_path: Path, seen: str, gpus: int) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "a-run"))
    point = UsagePoint(begin_s=1.0, end_s=2.0, spreads={seen: NodeSpread(1.0, 2.0, 3.0)})
    usage.write(str(run / usage.NAME), (point,))
    assert read_facts(str(run), 2e9, nobody_lives).gpus == gpus
