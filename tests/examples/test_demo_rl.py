"""examples/rl/demo.py: it kills rollouts while a policy learns, and tells what that cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "rl" / "demo.py"

#: Stands in for robust-run: a rollout that sleeps, and is there again when it was killed; a trainer that steps.
LAUNCHER = """#!{python}
import json, os, subprocess, sys, time
words = dict(zip(sys.argv[1:], sys.argv[2:]))
name = words["--run-id"]
run = os.path.join(words["--log-dir"], name)
rollouts = {{}}
def start(index):
    rollouts[index] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "dapo.py"])
    folder = f"{{run}}/members/rollout-{{index}}.1"
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/journal.jsonl", "a") as file:
        file.write(json.dumps({{"event": {{"type": "attempt_started", "pids": [rollouts[index].pid]}}}}) + "\\n")
start(0), start(1)
killed, until = 0, 2 if name == "struck" else 0
step = 0
while killed < until or step < 3:
    step += 1
    pid = {changes} and step == 2 and 7 or 5
    with open(run + "/trained.jsonl", "a") as file:
        file.write(json.dumps({{"step": step, "pid": pid, "at_s": float(step), "tokens": 100, "trained": [step]}}) + "\\n")
    if step < 3:
        print(f"[trainer/0]: step {{step}}  reward 0.5  mean 0.5", flush=True)
    time.sleep(0.05)
    for index in (0, 1):
        if rollouts[index].poll() is not None:
            killed += 1
            start(index)
for each in rollouts.values():
    each.kill()
    each.wait()
with open(run + "/final.json", "w") as file:
    json.dump({{"reward": {reward}, "step": step, "pid": 5}}, file)
"""


def demo(tmp_path: Path, reward: float = 0.95, *, changes: bool = False) -> tuple[int, str]:
    launcher = tmp_path / "robust-run"
    launcher.write_text(LAUNCHER.format(python=sys.executable, reward=reward, changes=changes))
    launcher.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(DEMO), "--launcher", str(launcher), "--folder", "kept", "--kill-every", "0.3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_kills_rollouts_by_turns_and_says_what_that_cost(tmp_path: Path) -> None:
    code, said = demo(tmp_path)
    assert code == 0, said
    for words in (
        "$ robust-run --roles kept/struck.toml",
        "step 1  reward 0.5",
        "rollout-0 (pid ",
        "rollout-1 (pid ",
        "untouched: pid 5 from the first step to the last",
        "100 with kills, 100 without: 1.00 of them",
    ):
        assert words in said, said


@pytest.mark.parametrize(("reward", "changes", "words"), [(0.5, False, "0.500 after"), (0.95, True, "RESTARTED")])
def test_what_did_not_come_out_is_a_failure(tmp_path: Path, reward: float, changes: bool, words: str) -> None:
    code, said = demo(tmp_path, reward, changes=changes)
    assert code == 1
    assert words in said
