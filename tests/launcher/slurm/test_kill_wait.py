"""How long workers get at Slurm's SIGTERM: what the site leaves them, and not what is usual."""

from __future__ import annotations

import pytest

from robust_run.slurm.rules.kill_wait import config_files, kill_wait_s, workers_time_s


@pytest.mark.parametrize(
    ("config", "limit_s"),
    [
        ("ClusterName=a\nKillWait=10\n", 10.0),
        ("  killwait = 60 # enough\n", 60.0),
        ("KillWait=10\nKillWait=45\n", 45.0),
        ("#KillWait=10\n", None),
        ("SlurmdParameters=KillWait=5\n", None),
        ("KillWait=soon\n", None),
        ("", None),
    ],
)
def test_the_site_s_own_file_says_it(config: str, limit_s: float | None) -> None:
    assert kill_wait_s(config) == limit_s


@pytest.mark.parametrize(("limit_s", "workers_s"), [(30.0, 20.0), (10.0, 6.7), (600.0, 400.0), (0.0, 1.0)])
def test_workers_get_two_thirds_and_the_rest_is_for_what_they_leave(limit_s: float, workers_s: float) -> None:
    assert workers_time_s(limit_s) == workers_s


def test_the_file_that_slurm_names_comes_first() -> None:
    assert config_files({"SLURM_CONF": "/var/spool/conf/slurm.conf"})[0] == "/var/spool/conf/slurm.conf"
    assert config_files({"SLURM_CONF": "conf-server:6817"}) == config_files({})
