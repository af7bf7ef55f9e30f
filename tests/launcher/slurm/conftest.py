"""A real Slurm for the tests in this folder: one in each process of pytest, made new again after every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, need_slurm
from slurm_conf import Knobs

NODES = 8


@pytest.fixture(scope="session")
def slurm_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(
        tmp_path_factory.mktemp("s"), NODES, Knobs(gpus=2, slurmd_timeout_s=6, kill_wait_s=30, grace_s=30)
    ) as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_site: SlurmCluster, tmp_path: Path) -> Iterator[SlurmCluster]:
    """Eight idle nodes with two GPUs each. What a test breaks is mended for the next one."""
    yield slurm_site
    slurm_site.reset()
