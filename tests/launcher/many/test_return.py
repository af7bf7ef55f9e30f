"""A node that comes back where the controller cannot move says at once what it waits for, and waits no longer than it must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENCE_S, TRAIN, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two hosts that are on."""
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def test_after_a_power_cut_of_all_the_same_lines_begin_anew_once_old_leases_are_over(
    pair: Cluster, tmp_path: Path
) -> None:
    options = ["--nnodes", "2", "--no-warm"]
    job = start_all(pair, tmp_path=tmp_path, options=options, launch=())
    at = job.argv.index("--run-id")  # else the folder's name is taken
    job.argv = [*job.argv[:at], *job.argv[at + 2 :], write(tmp_path, TRAIN)]
    for host in pair:
        job.join(host)
    job.wait_for_steps(0, 2)
    for host in pair:
        host.power_off()
    for host in pair:
        host.power_on()
    job.launchers = []
    back = job.join(pair[0])
    wait_for(lambda: "no attempt begins for " in back.err, f"it says what it waits for:\n{back.err}", PATIENCE_S)
    assert "this node had a part in run " in back.err
    assert "no attempt begins for 19 s" not in back.err, "the journal says how long leases were"
    job.join(pair[1])
    (job.steps_dir / "done").touch()
    assert {each.finish(PATIENCE_S) for each in job.launchers} == {0}, job.said()
