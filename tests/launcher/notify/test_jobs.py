"""Real jobs with --notify: a webhook hears of a failure, of training again, of the end; and nothing of it stays anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_torch import write_fake_torch
from jobs import run, running, script, wait_for
from notices import webhook

#: Makes steps of an optimizer, by a torch that is there at once: when they are told is the subject, not what counts them.
FAILS_ONCE = """
    import os, time, torch
    optimizer = torch.optim.Optimizer()
    for _ in range(3):
        optimizer.step()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)
    assert "ROBUST_NOTIFY" not in os.environ
    while os.path.exists("wait"):
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def fake_torch(tmp_path: Path) -> None:
    write_fake_torch(tmp_path)


def test_a_webhook_hears_the_whole_story_and_its_secret_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()  # the end of a job waits for its last notices only so long
    with (
        webhook() as hook,
        running(tmp_path, script(tmp_path, FAILS_ONCE), env={"ROBUST_NOTIFY": hook.url}) as job,
    ):
        wait_for(lambda: len(hook.told) == 2, "the job to train again, and that to be told")
        (tmp_path / "wait").unlink()
        assert job.finish() == 0
        job.assert_nothing_left()
        told = hook.told
    assert [each["event"] for each in told] == ["incident_opened", "incident_resolved", "job_ended"]
    assert told[0]["incident"]["kind"] == "crash"
    assert told[1]["incident"]["resumed_s"] > told[1]["incident"]["onset_s"]
    assert (told[2]["outcome"], told[2]["exit_code"]) == ("done", 0)
    assert "secret-path" not in job.err
    for path in job.run_dir.rglob("*"):
        if path.is_file():
            assert b"secret-path" not in path.read_bytes(), path
    (header,) = [line for line in job.journal() if "job" in line]
    assert header["job"]["notify"][0].endswith("/...")


def test_a_command_hears_it_and_one_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    teller = script(tmp_path, "cat >> told.jsonl; echo >> told.jsonl", "tell.sh")
    hangs = script(tmp_path, ": > hangs; sleep 600", "hang.sh")
    (tmp_path / "wait").touch()
    notify = ["--notify", f"sh {teller}", "--notify", f"sh {hangs}"]
    with running(tmp_path, *notify, script(tmp_path, FAILS_ONCE)) as job:
        wait_for(
            lambda: told.exists() and told.read_text().count("\n") == 2, "the job to train again, and that to be told"
        )
        (tmp_path / "wait").unlink()
        assert job.finish() == 0, "the command that hangs is not waited for"
        job.assert_nothing_left()
    events = [json.loads(line)["event"] for line in told.read_text().splitlines()]
    assert events == ["incident_opened", "incident_resolved", "job_ended"]
    assert (tmp_path / "hangs").exists()


def test_a_webhook_that_is_not_there_is_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    with webhook(lambda _: 404) as hook:
        code, job = run(tmp_path, "--notify", hook.url, script(tmp_path, FAILS_ONCE))
    assert code == 0
    assert job.err.count("a notice could not be sent: HTTP status 404; the job goes on") == 1
    assert "secret-path" not in job.err


@pytest.mark.parametrize("word", ["ftp://host/secret-path", "'open", "@no-such-file"])
def test_what_cannot_be_told_is_refused_before_anything_starts(tmp_path: Path, word: str) -> None:
    code, job = run(tmp_path, "--notify", word, script(tmp_path, ""))
    assert code == 2
    assert "--notify" in job.err
    assert "secret-path" not in job.err
    assert not job.run_dir.exists()


def test_a_storm_of_incidents_does_not_slow_the_job_down(tmp_path: Path) -> None:
    crashes = script(tmp_path, "import os; os._exit(3)")
    with (
        webhook(lambda _: None) as hook,
        running(tmp_path, "--max-restarts", "8", "--no-warm", "--notify", hook.url, crashes) as job,
    ):
        wait_for(lambda: job.actions("finish"), "the job to be over while the webhook hangs")
        assert len(job.actions("record_incident")) == 9
        assert job.finish() == 3
        job.assert_nothing_left()
