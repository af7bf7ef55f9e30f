"""Each recipe of docs/recipes trains to the very weights that it has under torchrun, whatever happens to a rank on the way."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import framework_parts
import framework_warmth
import jobs
import pytest
import warm_ground
from shown_commands import RECIPES, blocks

FAULTY = Path(__file__).with_name("with_fault.py")
ELASTIC = Path(__file__).with_name("elastic.py")
FRAMEWORKS = ("transformers", "accelerate", "lightning", "fsdp2", "deepspeed")
#: Jobs of these have no warm process but their own, which imports what it learns from the ranks.
FROM_NOTHING = ("accelerate",)
ZERO_1 = "deepspeed with ZeRO-1"
#: Their pages in docs/recipes are to be written where a GPU is; the table there says what was tried without.
NEED_CUDA = {
    "torchtitan": "its device is cuda where there is no accelerator",
    "megatron-core": "the first forward pass of its GPT model asks for CUDA",
}
COMMAND = "robust-run --nproc-per-node 2 train.py"
LIMIT_S = 400.0
pytestmark = pytest.mark.timeout(900)  # the first of them installs the frameworks


def script_of(name: str) -> str:
    """Return the training script that a recipe shows."""
    (text,) = [block.text for block in blocks(RECIPES / f"{name}.md") if block.values("file") == ["train.py"]]
    return text


def weights_in(said: str) -> str:
    """Return what the job trained to; rank 0 says it once."""
    found: list[str] = re.findall(r"^weights \S+$", said, re.MULTILINE)
    assert len(found) == 1, said
    return found[0]


def scripts() -> dict[str, str]:
    """Return what is trained under torchrun, by name."""
    deepspeed = script_of("deepspeed")
    zero_1 = deepspeed.replace('"stage": 2', '"stage": 1')
    assert zero_1 != deepspeed
    return {**{name: script_of(name) for name in FRAMEWORKS}, ZERO_1: zero_1}


def expected(name: str, shared: Path) -> str:
    """Return what torchrun trains to, undisturbed; once for all processes of tests."""
    with (shared / "torchrun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "torchrun" / name
        if not (folder / "said").exists():
            texts = scripts()
            if warm_ground.WANTED:
                under_torchrun_forked(texts, folder.parent)
            else:
                under_torchrun(texts[name], folder)
    said = (folder / "said").read_text()
    assert not (folder / "failed").exists(), said
    return weights_in(said)


def under_torchrun(text: str, folder: Path) -> None:
    """Train a script under torchrun, from nothing."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text)
    command = [framework_parts.python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    done = ended(command, folder)
    (folder / "said").write_text(done.stdout)
    assert done.returncode == 0, done.stderr


def under_torchrun_forked(texts: dict[str, str], above: Path) -> None:
    """Train all scripts under torchrun, with its ranks forked from one process."""
    for name, text in texts.items():
        (above / name).mkdir(parents=True)
        (above / name / "train.py").write_text(text)
    folders = [str(above / name) for name in texts]
    done = ended([framework_parts.python(), str(ELASTIC), framework_warmth.PRELOAD, *folders], above)
    assert done.returncode == 0, done.stderr


def ended(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **framework_parts.environment(), **warm_ground.SEVERAL},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def trained(text: str, kind: str, rank: int, step: int, tmp_path: Path, warm: Mapping[str, str] = {}) -> jobs.Job:
    """Run a script to its end, with a fault that fired. `warm`: the variables of one that starts from a warm process."""
    (tmp_path / "train.py").write_text(text)
    arguments = (str(FAULTY), kind, str(rank), str(step), "train.py")
    with jobs.running(
        tmp_path,
        "--nproc-per-node",
        "2",
        *arguments,
        env={**framework_parts.environment(), **warm},
        python=framework_parts.python(),
    ) as job:
        code = job.finish(LIMIT_S)
        job.assert_nothing_left()
    assert code == 0, job.err
    assert (tmp_path / f"fired-{kind}").exists()
    assert ("started from the warm process" in job.err) == bool(warm), job.err
    return job


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_rank_that_is_killed_midway_changes_nothing(
    name: str, tmp_path: Path, shared: Path, warm: dict[str, str]
) -> None:
    job = trained(script_of(name), "kill", 1, 30, tmp_path, {} if name in FROM_NOTHING else warm)
    assert weights_in(job.out) == expected(name, shared)
    assert len(job.events("attempt_started")) == 2
    assert "rank 1 was killed by SIGKILL" in job.err


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_page_shows_the_command_that_is_tried_here(name: str) -> None:
    assert [block.text.strip() for block in blocks(RECIPES / f"{name}.md") if block.what == "run"] == [COMMAND]


def test_all_that_the_frameworks_need_is_pinned() -> None:
    """Else a release of somebody else changes what is tested, or breaks it."""
    pinned = framework_parts.pins(framework_parts.CONSTRAINTS.read_text())
    needed = framework_parts.installed()
    assert {name: version.partition("+")[0] for name, version in needed.items()} == pinned


@pytest.mark.parametrize("name", NEED_CUDA)
def test_a_framework_that_needs_cuda_is_in_the_table_of_what_was_tried(name: str) -> None:
    rows = [line for line in (RECIPES / "README.md").read_text().splitlines() if line.startswith(f"| {name} |")]
    assert len(rows) == 1
    assert NEED_CUDA[name] in rows[0]
    pytest.skip(f"{name} needs CUDA: {NEED_CUDA[name]}")


def test_so_it_is_with_zero_1(tmp_path: Path, shared: Path, warm: dict[str, str]) -> None:
    job = trained(scripts()[ZERO_1], "kill", 1, 30, tmp_path, warm)
    assert weights_in(job.out) == expected(ZERO_1, shared)


def test_a_rank_that_is_stopped_is_found_and_the_job_goes_on(
    tmp_path: Path, shared: Path, warm: dict[str, str]
) -> None:
    job = trained(script_of("transformers"), "stop", 1, 30, tmp_path, warm)
    assert weights_in(job.out) == expected("transformers", shared)
    assert len(job.events("attempt_started")) == 2
    assert "SIGSTOP" in job.err


@pytest.mark.parametrize("name", ["lightning", "fsdp2"])
def test_a_rank_0_that_does_something_else_is_left_alone(
    name: str, tmp_path: Path, shared: Path, warm: dict[str, str]
) -> None:
    job = trained(script_of(name), "slow", 0, 30, tmp_path, warm)
    assert weights_in(job.out) == expected(name, shared)
    assert len(job.events("attempt_started")) == 1
