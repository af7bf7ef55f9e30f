"""examples/serving/demo.py: it kills expert members while requests are answered, compares the answers, and tells what it saw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving"
REQUESTS = 9

#: Stands in for robust-run: members that sleep, and are there again when they were killed; answers of the undivided model.
LAUNCHER = """#!{python}
import json, os, subprocess, sys, time
sys.path.insert(0, {example!r})
import frontend, msgspec, reference
from words import Answer
words = dict(zip(sys.argv[1:], sys.argv[2:]))
run = os.path.join(words["--log-dir"], words["--run-id"])
assert "--requests=9" in open(words["--roles"]).read()
members = {{}}
def start(name):
    members[name] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "serve.py"])
    folder = f"{{run}}/members/{{name}}.1"
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/journal.jsonl", "a") as file:
        file.write(json.dumps({{"event": {{"type": "attempt_started", "pids": [members[name].pid]}}}}) + "\\n")
for name in ("expert-0", "expert-1", "expert-2", "attention-0", "attention-1"):
    start(name)
def answer(number, file):
    asked = frontend.request(number, 0)
    found = Answer(number, error="too long") if number == 7 else Answer(number, *reference.generate(asked.prompt, asked.most), 5)
    if number == {wrong}:
        found = msgspec.structs.replace(found, digest="another")
    file.write(json.dumps(msgspec.to_builtins(found)) + "\\n")
    file.flush()
killed = 0
with open(run + "/answers.jsonl", "w") as file:
    answer(0, file)
    while killed < 4:
        time.sleep(0.05)
        for name, process in list(members.items()):
            if process.poll() is not None:
                killed += 1
                start(name)
                print(f"[attention/0]: {{name.replace('-', '/')}} is back after 0.{{killed}} s", flush=True)
    print("[attention/0]: 40 times attention, at 75% of them experts had the other micro-batch", flush=True)
    for number in range(1, {count}):
        answer(number, file)
for each in members.values():
    each.kill()
    each.wait()
"""


def demo(tmp_path: Path, *words: str, wrong: int = -1, count: int = REQUESTS) -> tuple[int, str]:
    launcher = tmp_path / "robust-run"
    launcher.write_text(LAUNCHER.format(python=sys.executable, example=str(EXAMPLE), wrong=wrong, count=count))
    launcher.chmod(0o755)
    done = subprocess.run(
        [
            *(sys.executable, str(EXAMPLE / "demo.py"), "--launcher", str(launcher), "--folder", "kept"),
            *("--kill-every", "0.3", "--requests", str(REQUESTS), *words),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_kills_experts_by_turns_and_an_attention_member_and_says_what_it_saw(tmp_path: Path) -> None:
    code, said = demo(tmp_path)
    assert code == 0, said
    for words in (
        "$ robust-run --roles kept/serving.toml",
        "expert-0 (pid ",
        "expert-1 (pid ",
        "expert-2 (pid ",
        "attention-0 (pid ",
        "expert/0 is back after 0.1 s",
        "9 of 9 answered",
        "yes, to the last bit of all logits",
        " expert members, ",
        "0.20 s, at most 0.30 s",
        "at 75% of attention's turns",
    ):
        assert words in said, said


@pytest.mark.parametrize(
    ("wrong", "count", "words"), [(5, REQUESTS, "NO: not [5]"), (-1, REQUESTS - 1, "8 of 9 answered")]
)
def test_what_did_not_come_out_is_a_failure(tmp_path: Path, wrong: int, count: int, words: str) -> None:
    code, said = demo(tmp_path, wrong=wrong, count=count)
    assert code == 1
    assert words in said


def test_a_launcher_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, said = demo(tmp_path, "--launcher", "nowhere/robust-run")
    assert code == 1
    assert "nowhere/robust-run is not there" in said
