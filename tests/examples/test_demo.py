"""examples/demo.py: it does to the ranks what it says, waits for the recovery, and tells what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"

#: Stands in for robust-run: its ranks sleep, and when one is killed or stopped it goes on from the last checkpoint.
LAUNCHER = """#!{python}
import json, os, signal, subprocess, sys, time
words = dict(zip(sys.argv[1:], sys.argv[2:]))
run = os.path.join(words["--log-dir"], words["--run-id"])
os.makedirs(run + "/incidents")
incidents, step, until = 0, 0, 60
while step < until:
    ranks = [subprocess.Popen(["sleep", "300"]) for _ in range(2)]
    with open(run + "/journal.jsonl", "a") as journal:
        journal.write(json.dumps({{"event": {{"type": "attempt_started", "pids": [each.pid for each in ranks]}}}}) + "\\n")
    print(f"resumed from step {{step}} (there)" if step else "starts", flush=True)
    struck = None
    while step < until and struck is None:
        step += 5
        print(f"step {{step}}/60  loss 1.0", flush=True)
        give_up = time.monotonic() + (60 if words["--run-id"] == "faulted" and (step, incidents) in ((15, 0), (45, 1)) else 0)
        while struck is None and time.monotonic() < give_up:
            for rank, each in enumerate(ranks):
                pid, status = os.waitpid(each.pid, os.WNOHANG | os.WUNTRACED)
                if pid:
                    struck = (rank, "SIGKILL" if os.WIFSIGNALED(status) else signal.Signals(os.WSTOPSIG(status)).name)
            time.sleep(0.01)
    for each in ranks:
        each.kill()
        try:
            os.waitpid(each.pid, 0)
        except ChildProcessError:
            pass
    if struck:
        incidents += 1
        verdict = {{"ranks": [struck[0] if {names_it} else 7], "sentence": f"rank {{struck[0]}} got {{struck[1]}}"}}
        with open(f"{{run}}/incidents/{{incidents:04d}}.json", "w") as file:
            json.dump({{"verdict": verdict, "decided_s": time.time()}}, file)
        step = step // 10 * 10
        print("[rank0]: Traceback\\n[rank0]:   in f\\n[rank0]: RuntimeError: Connection reset", flush=True)
os.makedirs(words["--out"], exist_ok=True)
with open(words["--out"] + "/final.json", "w") as file:
    json.dump({{"weights_sha256": "ab" * 32 if {equal} else words["--run-id"]}}, file)
"""


def demo(tmp_path: Path, *, equal: bool = True, names_it: bool = True) -> tuple[int, str]:
    launcher = tmp_path / "robust-run"
    launcher.write_text(LAUNCHER.format(python=sys.executable, equal=equal, names_it=names_it))
    launcher.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(DEMO), "--launcher", str(launcher), "--folder", "kept", "--record", "recorded"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_kills_one_rank_hangs_another_and_says_where_the_pages_are(tmp_path: Path) -> None:
    code, said = demo(tmp_path)
    assert code == 0, said
    head, *events = [json.loads(line) for line in (tmp_path / "recorded" / "demo.cast").read_text().splitlines()]
    assert head["version"] == 2
    assert "".join(text for _, _, text in events).replace("\r\n", "\n") == said
    assert [at_s for at_s, _, _ in events] == sorted(at_s for at_s, _, _ in events)
    picture = ElementTree.fromstring((tmp_path / "recorded" / "demo.svg").read_text())
    assert "gets SIGSTOP now" in "".join(picture.itertext())
    for words in (
        "gets SIGKILL now",
        "gets SIGSTOP now",
        "rank 1 was killed",
        "rank 1 got SIGKILL",
        "rank 0 was stopped",
        "rank 0 got SIGSTOP",
        "5 steps made again",
        "(3 lines of a traceback, the last one:) [rank0]: RuntimeError: Connection reset\n",
        "equal, bit for bit",
        "kept/faulted/report.html",
        "kept/faulted/incidents/0002.html",
    ):
        assert words in said, said


@pytest.mark.parametrize(
    ("what", "words"),
    [({"equal": False}, "DIFFERENT"), ({"names_it": False}, "names ranks [7]")],
    ids=["weights", "rank"],
)
def test_what_did_not_come_out_is_a_failure(tmp_path: Path, what: dict[str, bool], words: str) -> None:
    code, said = demo(tmp_path, **what)
    assert code == 1
    assert words in said
