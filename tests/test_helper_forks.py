"""Helpers of forked launchers, and commands that are typed on hosts: they are as if they had been started."""

from __future__ import annotations

import os
from pathlib import Path

import host_warmth
import hosts
import pytest
import warm_ground
from clusters import TRAIN, children, start_all, write


def test_helpers_and_commands_that_are_forked_on_hosts_are_as_if_they_had_been_started(tmp_path: Path) -> None:
    hosts.need_hosts()
    if not warm_ground.WANTED:
        pytest.skip("TEST_WARM=off")
    with hosts.Cluster(2, tmp_path) as cluster:
        options = ["--nnodes", "2", "--no-warm"]
        job = start_all(cluster, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options)
        job.wait_for_steps(0, 2)
        agent, controller = job.on(cluster[0]).agent_pid(), job.on(cluster[0]).controller_pid()
        assert controller in children(agent)
        assert os.getsid(controller) == controller
        assert f"TEST_JOB={job.run_id}" in Path(f"/proc/{controller}/environ").read_text().split("\0")
        agents, its = ({os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()} for pid in (agent, controller))
        assert not {each for each in agents & its if each.startswith(("socket:", "pipe:", "anon_inode:[eventpoll]:"))}
        assert "torch" not in Path(f"/proc/{controller}/maps").read_text(), "a launcher without a warm process has none"
        said = cluster[1].run([*host_warmth.COMMAND, "status", str(job.run_dir)], env=job.env).stdout
        assert job.run_id in said
        assert job.finish() == {"node-0": 0, "node-1": 0}, job.said()
        job.assert_nothing_left()
