"""`--ckpt-memory-dir`: which jobs may have a folder in memory, what workers are told, and what people are told at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Machine

from robust_run.ckpt_io.memory_dir.types import Written
from robust_run.errors import UserError
from robust_run.launcher.agent.memory.folder import options_of, words
from robust_run.launcher.agent.workers.environment import RankPlace, worker_environment
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.validate import resolve


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.write("/job/train.py", "")
    return machine


def job(machine: Machine, *options: str) -> JobSpec:
    return resolve(parse([*options, "train.py"], {}), machine.world())


def environment(spec: JobSpec, base: dict[str, str]) -> dict[str, str]:
    place = RankPlace(attempt=0, address="127.0.0.1", port=1, world_size=1)
    return worker_environment(
        spec, base, local_rank=0, place=place, agent_hosts_store=True, error_file="e", run_dir="r"
    )


def test_a_job_of_one_node_has_it_with_storage_below_and_a_limit(machine: Machine) -> None:
    spec = job(machine, "--ckpt-memory-dir", "now", "--ckpt-dir", "storage", "--ckpt-memory", "64G")
    options = options_of(spec)
    assert options.point.endswith("/job/now") and options.storage.endswith("/job/storage")
    assert options.limit_bytes == 64 << 30
    assert spec.resume_folder == spec.ckpt_memory_dir, "it shows what is in storage, too"


def test_workers_are_told_where_it_is_and_not_where_that_of_an_outer_job_is(machine: Machine) -> None:
    spec = job(machine, "--ckpt-memory-dir", "now")
    assert environment(spec, {})["ROBUST_CKPT_MEMORY_DIR"] == spec.ckpt_memory_dir
    assert "ROBUST_CKPT_MEMORY_DIR" not in environment(job(machine), {"ROBUST_CKPT_MEMORY_DIR": "/outer"})


@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_a_job_that_may_have_several_nodes_is_refused_with_what_to_do(machine: Machine, nodes: str) -> None:
    with pytest.raises(UserError, match=r"for jobs of one node.*use robust_run\.checkpoint, or a --ckpt-dir that all"):
        job(machine, "--ckpt-memory-dir", "now", "--nnodes", nodes, "--rdzv-endpoint", "h:1", "--rdzv-backend", "c10d")


@pytest.mark.parametrize("path", ["", "s3://bucket/run"])
def test_what_is_no_folder_is_refused(machine: Machine, path: str) -> None:
    with pytest.raises(UserError, match="must be a folder of this machine"):
        job(machine, "--ckpt-memory-dir", path)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (Written(files=0, bytes=0), []),
        (Written(files=1, bytes=5 << 20), ["1 file, 5.0 MiB, was written from memory to /s in 0.8 s"]),
        (Written(files=3, bytes=1288490189), ["3 files, 1.2 GiB, were written from memory to /s in 0.8 s"]),
        (
            Written(files=0, bytes=0, lost=("a", "b", "c", "d"), lost_files=7, why="No space left on device"),
            ["7 files could not be written to /s (No space left on device), lost: b, c, d, ..."],
        ),
    ],
)
def test_the_end_says_what_was_written_and_what_is_lost(written: Written, lines: list[str]) -> None:
    assert words(written, "/s", 0.8) == lines
