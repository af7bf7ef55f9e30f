"""Facts of a job of several nodes that loses one: which host, what it cost, how long each was there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from clusters import TRAIN, start_all, write
from fact_ground import lost_s
from hosts import Cluster, need_hosts

from robust_run.launcher.operator.reading.run_facts import nobody_lives, read_facts


def test_a_node_that_lost_power_is_named_and_its_standby_counts(tmp_path: Path) -> None:
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        first, lost, standby = cluster
        options = ["--no-warm", "--nnodes", "2", "--standby", "1", "--rdzv-conf", "keep_alive_max_attempt=7"]
        job = start_all(cluster, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options, launch=[first, lost])
        job.wait_for_steps(0, 2)
        job.join(standby)
        job.wait_for_event("node_joined", 3)
        lost.power_off()
        job.wait_for_incident()
        job.wait_for_steps(1, 2)
        job.finish()
    facts = read_facts(str(job.run_dir), time.time(), nobody_lives)
    assert (facts.state, facts.nodes, facts.ranks) == ("done", 2, 2)
    [incident] = facts.incidents
    assert (incident.kind, incident.component, incident.symptom) == ("node_lost", "node", "node_lost")
    assert (incident.nodes, incident.action, incident.evicted) == ((lost.name,), "evict", (lost.name,))
    assert incident.lost.detect >= 7, "nobody knew that it was gone before its lease was over"
    assert incident.lost.wait + incident.lost.launch > 0
    assert set(facts.node_s) == {first.name, lost.name, standby.name}
    life_s = facts.until_s - facts.began_s
    assert facts.node_s[first.name] == pytest.approx(life_s, abs=5)
    assert facts.node_s[lost.name] < life_s
    assert facts.node_s[standby.name] < life_s
    assert lost_s(facts) + (facts.effective_s or 0.0) == pytest.approx(life_s, abs=1.0)
