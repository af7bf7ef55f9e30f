"""The example training program: it learns, and no interruption changes what it ends with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_ground
from example_programs import Python, forks_environment

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
MODEL = ["--width", "32", "--layers", "1", "--heads", "2", "--block", "32"]
TINY = [*MODEL, "--batch", "4", "--lr", "0.01", "--log-every", "10"]
STEPS = 120
EVERY = 20
LIMIT_S = 300

pytestmark = pytest.mark.timeout(600)  # some start up to nine processes with torch


def environment() -> dict[str, str]:
    """Ours, without what a launcher would set."""
    launched = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in os.environ.items() if name not in launched}


def command(out: Path, steps: int = STEPS, *more: str) -> list[str]:
    where = ["--out", str(out), "--steps", str(steps), "--checkpoint-every", str(EVERY)]
    return [str(SCRIPT), *TINY, *where, *more]


def train(python: Python, out: Path, steps: int = STEPS, *more: str) -> str:
    """Train to the end; what it printed."""
    done = python(tuple(command(out, steps, *more)))
    assert done.code == 0, done.out + done.err
    return done.out


def train_in(workers: int, out: Path, steps: int, *more: str, launcher: str = "robust_run") -> str:
    """The same with several workers."""
    logs = () if launcher != "robust_run" else ("--log-dir", str(out.with_name("runs")))
    words = ["-m", launcher, "--nproc-per-node", str(workers), *logs]
    done = subprocess.run(
        [sys.executable, *words, *command(out, steps, *more)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher != "robust_run" or not warm_ground.WANTED or "started from the warm process" in done.stderr
    return done.stdout


def final(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "final.json").read_text())
    return content


def newest_checkpoint(out: Path) -> Path:
    return max(out.glob("step-*.pt"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, python: Python) -> tuple[Path, str]:
    """The folder and the output of a run that nothing happened to."""
    out = tmp_path_factory.mktemp("undisturbed")
    return out, train(python, out)


def test_the_loss_falls_in_training_and_on_held_out_text(undisturbed: tuple[Path, str]) -> None:
    out, printed = undisturbed
    first, *_, last = (float(loss) for loss in re.findall(r"^step .*loss ([0-9.]+)", printed, re.MULTILINE))
    assert last < first - 1.0
    assert final(out)["train_loss"] < first - 1.0
    assert final(out)["val_loss"] < first - 1.0


def test_it_prints_the_digest_that_it_writes_and_keeps_the_newest_checkpoints(undisturbed: tuple[Path, str]) -> None:
    out, printed = undisturbed
    assert printed.rstrip().endswith(f"weights sha256 {final(out)['weights_sha256']}")
    steps = sorted(int(path.name.split("-")[1]) for path in out.glob("step-*.pt"))
    assert steps == [STEPS - 2 * EVERY, STEPS - EVERY, STEPS]


def test_a_killed_run_resumes_and_ends_with_the_weights_of_one_that_was_not(tmp_path: Path, python: Python) -> None:
    out = tmp_path / "killed"
    # It would train for hours, so the kill cannot come too late; how far it got decides where both runs end.
    with subprocess.Popen(
        [sys.executable, *command(out, 1_000_000)], env=forks_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 30/"):
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert not (out / "final.json").exists()
    reached = int(newest_checkpoint(out).name.split("-")[1])
    assert reached >= EVERY

    assert f"resumed from step {reached} " in train(python, out, reached + 30)

    train(python, tmp_path / "straight", reached + 30)
    assert final(out) == final(tmp_path / "straight")


@pytest.mark.parametrize("damage", ["torn", "one bit flipped", "empty"])
def test_a_damaged_newest_checkpoint_is_skipped(
    tmp_path: Path, python: Python, undisturbed: tuple[Path, str], damage: str
) -> None:
    out = tmp_path / "damaged"
    shutil.copytree(undisturbed[0], out)
    (out / "final.json").unlink()
    newest = newest_checkpoint(out)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes({"torn": bytes(data[: len(data) // 2]), "one bit flipped": bytes(data), "empty": b""}[damage])

    printed = train(python, out)

    assert f"skipped checkpoint {newest}" in printed
    assert f"resumed from step {STEPS - EVERY} " in printed
    assert final(out) == final(undisturbed[0])


def test_a_run_that_is_done_stays_as_it_is(tmp_path: Path, python: Python, undisturbed: tuple[Path, str]) -> None:
    out = tmp_path / "done"
    shutil.copytree(undisturbed[0], out)
    assert f"resumed from step {STEPS} " in train(python, out)
    assert final(out) == final(undisturbed[0])


def test_a_checkpoint_of_another_model_is_refused_with_the_reason(
    tmp_path: Path, python: Python, undisturbed: tuple[Path, str]
) -> None:
    out = tmp_path / "other"
    shutil.copytree(undisturbed[0], out)
    refused = python(tuple(command(out, STEPS, "--seed", "2")))
    assert refused.code == 1
    assert "was trained with seed 1, not 2" in refused.err
    assert "Traceback" not in refused.err


def test_it_writes_a_sample_on_request(tmp_path: Path, python: Python, undisturbed: tuple[Path, str]) -> None:
    out = tmp_path / "sample"
    shutil.copytree(undisturbed[0], out)
    assert "\ndef " in train(python, out, STEPS, "--sample", "20")


def test_what_robust_run_keeps_gives_the_same_weights_also_when_the_newest_is_damaged(
    tmp_path: Path, python: Python, undisturbed: tuple[Path, str]
) -> None:
    out, kept = tmp_path / "out", ("--ckpt-dir", str(tmp_path / "ckpt"))
    train(python, out, STEPS - EVERY - 7, *kept)
    assert not list(out.glob("step-*.pt"))
    names = [f"step-{step}" for step in (STEPS - 3 * EVERY, STEPS - 2 * EVERY, STEPS - EVERY - 7)]
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == sorted(names)
    part = max((tmp_path / "ckpt" / names[-1]).rglob("*.part"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)

    printed = train(python, out, STEPS, *kept)

    assert f"resumed from step {STEPS - 2 * EVERY} " in printed
    assert final(out) == final(undisturbed[0])


def test_it_goes_on_from_what_the_launcher_names_in_the_folder_that_it_was_given(
    tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBUST_CKPT_DIR", str(tmp_path / "ckpt"))
    train(python, tmp_path / "out", 2 * EVERY)
    monkeypatch.setenv("ROBUST_RESUME", str(tmp_path / "ckpt" / f"step-{EVERY}"))
    assert f"resumed from step {EVERY} " in train(python, tmp_path / "out", 2 * EVERY)


def test_what_robust_run_keeps_of_another_model_is_refused_with_the_reason(tmp_path: Path, python: Python) -> None:
    kept = ("--ckpt-dir", str(tmp_path / "ckpt"))
    train(python, tmp_path / "out", 2, *kept)
    for option, value in (("seed", "2"), ("width", "64")):
        refused = python(tuple(command(tmp_path / "out", 4, f"--{option}", value, *kept)))
        assert refused.code == 1
        assert re.search(rf"was trained with {option} \d+, not {value}", refused.err)
        assert "Traceback" not in refused.err


def test_two_workers_go_on_from_what_robust_run_keeps(tmp_path: Path) -> None:
    kept = ("--ckpt-dir", str(tmp_path / "ckpt"))
    train_in(2, tmp_path / "straight", 30, launcher="torch.distributed.run")
    train_in(2, tmp_path / "stopped", 13, *kept)
    assert "resumed from step 13 " in train_in(2, tmp_path / "stopped", 30, *kept)
    assert final(tmp_path / "stopped") == final(tmp_path / "straight")


def test_three_workers_that_stopped_on_the_way_end_with_the_weights_of_three_that_did_not(tmp_path: Path) -> None:
    # Two workers cannot show it: a sum of two gradients has only one order.
    train_in(3, tmp_path / "straight", 30)
    train_in(3, tmp_path / "stopped", 13)
    assert "resumed from step 13 " in train_in(3, tmp_path / "stopped", 30)
    assert final(tmp_path / "stopped") == final(tmp_path / "straight")
