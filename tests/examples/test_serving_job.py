"""Serving in a job of three roles, with members that are killed: every request is answered, as by the undivided model."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from jobs import Job, kill, running, wait_for
from rl_jobs import pids

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serving"))

import reference
from frontend import read, request

EXAMPLE = Path(reference.__file__).parent
REQUESTS, SEED = 90, 5
ODD = (7, 57)
"""Requests that cannot be answered: they are too long."""


def file_of_roles(folder: Path, *, attention: int, experts: int, copies: int) -> str:
    """Write the example's file of roles with other numbers of members."""
    command = json.dumps([str(EXAMPLE / "serve.py"), f"--requests={REQUESTS}", f"--seed={SEED}", f"--copies={copies}"])
    text = (EXAMPLE / "serving.toml").read_text().replace('"examples/serving/serve.py"', command)
    text = text.replace("members = 2", f"members = {attention}").replace("members = 3", f"members = {experts}")
    assert text.count(f"members = {attention}") >= 1 <= text.count(f"members = {experts}")
    (folder / "serving.toml").write_text(text)
    return "serving.toml"


def lines_of(job: Job) -> list[str]:
    path = job.run_dir / "answers.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def strike(job: Job, member: str, after: int) -> None:
    """When so many requests are answered, kill a member's worker, and see it come back."""
    wait_for(lambda: len(lines_of(job)) >= after or job.process.poll() is not None, f"{after} answers")
    assert len(lines_of(job)) < REQUESTS - 10, "too late to matter"
    before = pids(job.run_dir, member)
    kill(before[-1])
    wait_for(lambda: len(pids(job.run_dir, member)) > len(before), f"a new worker of {member}")


def check(job: Job) -> None:
    """The job has ended well; each request was answered once, as the undivided model does; nothing is left."""
    assert job.finish() == 0, job.err
    answers = read(str(job.run_dir / "answers.jsonl"))
    numbers = Counter(json.loads(line)[0] for line in lines_of(job))
    assert numbers == Counter(range(REQUESTS))
    for number, answer in answers.items():
        asked = request(number, SEED)
        if number in ODD:
            assert "letters and an answer of" in answer.error
        else:
            assert (answer.text, answer.digest) == reference.generate(asked.prompt, asked.most)
    job.assert_nothing_left()


def test_experts_attention_and_frontend_are_killed_and_no_answer_changes(tmp_path: Path) -> None:
    """One copy of each expert and one attention member: whoever is killed has to be waited for."""
    with running(tmp_path, "--roles", file_of_roles(tmp_path, attention=1, experts=2, copies=1)) as job:
        strike(job, "expert-1", after=10)
        strike(job, "attention-0", after=25)
        strike(job, "expert-0", after=40)
        strike(job, "frontend-0", after=55)
        check(job)
        assert {name: len(pids(job.run_dir, name)) for name in ("expert-0", "expert-1", "attention-0")} == {
            "expert-0": 2,
            "expert-1": 2,
            "attention-0": 2,
        }
        again = [each.asked_again for each in read(str(job.run_dir / "answers.jsonl")).values()]
        assert any(again), "no request noticed that an expert was away"
        assert "expert/1 is back after" in job.out
        assert "expert/0 is back after" in job.out
