"""`--ckpt-dir`: each attempt's workers are told the newest checkpoint there is when it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from counting_server import counting_server
from jobs import script
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.newest import age_of, newest_path

TRAIN = """
import os, sys, shutil
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, os.environ.get("ROBUST_RESUME"), flush=True)
if attempt == "0":
    os.rename("later", "ckpt/step-2")
    sys.exit(3)
"""


def run(tmp_path: Path, *arguments: str) -> list[str]:
    """Run a job that fails once and makes a checkpoint before that; return what its worker printed."""
    make_checkpoint([tmp_path / "later"], {"x": b""}, step=2)
    (tmp_path / "ckpt").mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "robust_run", "--max-restarts", "1", "--log-dir", "runs", *arguments]
    environment = {**os.environ, "ROBUST_RESUME": "of somebody else"}
    done = subprocess.run(
        [*argv, script(tmp_path, TRAIN)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    return sorted(line[line.index("attempt") :] for line in done.stdout.splitlines() if "attempt" in line)


def test_it_is_looked_for_again_at_each_attempt(tmp_path: Path) -> None:
    assert run(tmp_path, "--ckpt-dir", "ckpt") == ["attempt 0 None", f"attempt 1 {tmp_path}/ckpt/step-2"]
    (journal,) = tmp_path.glob("runs/*/journal.jsonl")
    events = [json.loads(line).get("event", {}) for line in journal.read_text().splitlines()]
    told = [(each["resumes_s"], each["resumes_step"]) for each in events if each.get("type") == "attempt_started"]
    made_s = age_of(f"{tmp_path}/ckpt/step-2")
    assert told == [(None, None), made_s], "so that what was made again can be told from the journal alone"


def test_a_url_is_looked_at_and_told(tmp_path: Path) -> None:
    with counting_server(tmp_path) as server:
        url = f"{server.url}/ckpt"
        assert run(tmp_path, "--ckpt-dir", url) == ["attempt 0 None", f"attempt 1 {url}/step-2"]


def test_without_the_option_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert run(tmp_path) == ["attempt 0 of somebody else", "attempt 1 of somebody else"]


def test_the_newest_has_the_highest_step_and_a_manifest_that_is_whole(tmp_path: Path) -> None:
    assert newest_path(str(tmp_path / "nowhere")) is None
    assert newest_path(str(tmp_path)) is None
    make_checkpoint([tmp_path / "zz"], {"x": b""})
    assert newest_path(str(tmp_path)) == f"{tmp_path}/zz"
    for step in (2, 30, 4):
        make_checkpoint([tmp_path / f"step-{step}"], {"x": b""}, step=step)
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-30"
    manifest = tmp_path / "step-30" / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-4"
    (tmp_path / "step-4" / "MANIFEST").write_bytes(b"rrck 2 " + b"0" * 32 + b" 1\n1")
    (tmp_path / "step-99").mkdir()
    (tmp_path / "step-99" / "MANIFEST").write_bytes(os.urandom(300))
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-2"


def test_one_whose_parts_are_not_all_there_is_passed_over(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        make_checkpoint(
            [tmp_path / f"step-{step}", tmp_path / "other" / f"step-{step}"],
            {"x": bytes(3 << 20), "y": b"y"},
            step=step,
        )
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-3"
    shutil.rmtree(next((tmp_path / "step-3").glob("parts-*")))
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-2"
    part = next((tmp_path / "step-2").rglob("*.part"))
    part.write_bytes(part.read_bytes() + b"x")
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-1"


def test_it_is_the_one_that_robust_ckpt_latest_names(tmp_path: Path) -> None:
    from robust_run.ckpt_io.catalog import latest

    for number, step in enumerate((5, None, 7, 7)):
        make_checkpoint([tmp_path / f"c{number}"], {"x": b""}, step=step)
    found = latest(str(tmp_path))
    assert found is not None
    assert newest_path(str(tmp_path)) == found.url


def test_looking_for_it_imports_nothing_heavy_before_the_first_worker(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-1"], {"x": b""}, step=1)
    program = """
import os, sys
import robust_run.launcher.agent.workers.workers as workers
def stop(argv, env, *_, **__):
    print(env["ROBUST_RESUME"], *sys.modules, sep="\\n", flush=True)
    os._exit(0)
workers.start = stop
from robust_run.cli import run
run(sys.argv[1:], os.environ)
"""
    argv = [sys.executable, "-c", program, "--ckpt-dir", "ckpt", "--log-dir", "runs", script(tmp_path, "")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    path, *modules = done.stdout.splitlines()
    assert path == f"{tmp_path}/ckpt/step-1", done.stderr
    ours = {name for name in modules if name.startswith("robust_run.ckpt_io")}
    assert ours == {"robust_run.ckpt_io", *(f"robust_run.ckpt_io.{name}" for name in ("briefly", "newest", "seen"))}
    assert not {"torch", "fsspec", "rich", "tenacity", "aiohttp", "json"} & set(modules)
    assert len(set(modules) - {"sitecustomize"}) <= 246  # Debian's Python has one
