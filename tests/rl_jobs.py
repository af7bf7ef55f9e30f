"""Reinforcement learning in a job of roles, for tests: started as a user would, struck on the way, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import wait_for

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600.0


class Result(NamedTuple):
    """What a run left behind."""

    final: dict[str, Any]
    steps: dict[int, dict[str, Any]]
    """By number: of a step that was made again, the last."""
    lines: list[dict[str, Any]]
    output: str
    folder: Path


def file_of_roles(folder: Path, name: str, *words: str) -> Path:
    """Write an example's file of roles with absolute paths and more words for its trainer."""
    text = (ROOT / "examples" / "rl" / f"{name}.toml").read_text()
    head, mark, rest = text.partition('command = "examples/rl/')
    script, _, rest = rest.partition('"')
    command = json.dumps([str(ROOT / "examples" / "rl" / script), *words])
    path = folder / f"{name}.toml"
    path.write_text(
        f"{head}{mark.split('=', maxsplit=1)[0]}= {command}{rest}".replace('"examples/rl/', f'"{ROOT}/examples/rl/')
    )
    return path


def recorded(run: Path) -> list[dict[str, Any]]:
    """Return the steps that a trainer has written down so far."""
    path = run / "trained.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def pids(run: Path, member: str) -> list[int]:
    """Return the workers that a member has had, oldest first."""
    found: list[int] = []
    for journal in sorted(
        (run / "members").glob(f"{member}.*/journal.jsonl"), key=lambda path: int(path.parent.suffix[1:])
    ):
        for line in journal.read_text().splitlines(keepends=True):
            event = json.loads(line).get("event", {}) if line.endswith("\n") else {}
            if event.get("type") == "attempt_started":
                found += event["pids"]
    return found


def strike(run: Path, member: str) -> None:
    """Kill a member's worker, and see it come back."""
    before = pids(run, member)
    os.kill(before[-1], signal.SIGKILL)
    wait_for(lambda: len(pids(run, member)) > len(before), f"a new worker of {member}")


def train(folder: Path, name: str, *words: str, strikes: Sequence[tuple[int, str]] = ()) -> Result:
    """Run an example to its end; when it has made so many steps, a member is struck."""
    folder.mkdir(parents=True, exist_ok=True)
    roles = file_of_roles(folder, name, *words)
    command = [sys.executable, "-m", "robust_run", "--roles", str(roles), "--log-dir", str(folder), "--run-id", "run"]
    run = folder / "run"
    with (
        open(folder / "out", "wb") as out,
        subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder) as job,
    ):
        try:
            for step, member in strikes:
                wait_for(
                    lambda step=step: len(recorded(run)) >= step or job.poll() is not None, f"step {step}", LIMIT_S
                )  # type: ignore[misc]
                strike(run, member)
            code = job.wait(LIMIT_S)
        finally:
            job.terminate()
    output = (folder / "out").read_text()
    assert code == 0, output
    lines = recorded(run)
    final = json.loads((run / "final.json").read_text())
    return Result(final, {line["step"]: line for line in lines}, lines, output, run)
