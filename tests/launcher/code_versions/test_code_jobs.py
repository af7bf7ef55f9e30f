"""Code updates of real jobs of one node: what waits for a failure, what is rolled back, what never leaks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from code_jobs import (
    began,
    crash,
    fates,
    finish,
    robust,
    wait_for_fate,
    wait_for_steps,
    write_code,
)
from jobs import PATIENT, Job, run, running, script, wait_for

OPTIONS = ("--nproc-per-node", "2", "--probation-steps", "10", "--restart-grace", "1")


def wait_for_standbys(job: Job) -> None:
    """Spare the next attempt the imports, and the job those of a warm process that would come too late."""
    wait_for(lambda: len(job.events("standby_ready")) >= 2, "standby workers")


def wait_captured(job: Job, folder: Path) -> None:
    wait_for(lambda: job.events("code_captured"), "the code to be captured")
    wait_for(lambda: (job.run_dir / "api.json").exists(), "somebody to ask")
    assert fates(job, folder) == {1: "trusted"}


def test_a_pending_update_waits_for_a_crash_and_the_weights_go_on(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        write_code(tmp_path, scale=2)
        said = robust(tmp_path, "update", "--slower", "--note", "twice the loss", run=job)
        assert "next failure" in said.stdout
        assert "model.py +1 -1" in said.stdout
        assert fates(job, tmp_path) == {1: "trusted", 2: "pending"}
        assert not (tmp_path / "began-1-0").exists(), "nothing was disturbed"
        wait_for_standbys(job)
        crash(job, 0)
        now = began(tmp_path, 1)
        assert (now["scale"], began(tmp_path, 1, rank=1)["scale"]) == (2, 2)
        assert now["from"] > 0
        assert now["version"].startswith("2-")
        wait_for_fate(job, tmp_path, 2, "trusted")
        assert finish(job, tmp_path) == 0
        job.assert_nothing_left()
    assert "version 2 (model.py +1 -1" in job.err
    log = robust(tmp_path, "code", "log", run=job).stdout
    assert "twice the loss" in log, "a job that is over is asked too"
    assert "-SCALE = 1\n+SCALE = 2" in robust(tmp_path, "code", "diff", "1", "2", run=job).stdout


@pytest.mark.parametrize(
    ("what", "extra", "pause", "kind", "words"),
    [
        ("an import error", "pass\nimport no_such_module_anywhere", 0.02, "code", "no_such_module_anywhere"),
        ("an exception at step 3", "assert step % 5 != 3, 'third time unlucky'", 0.02, "code", "third time unlucky"),
        ("a crash", "os._exit(41) if step % 5 == 3 else None", 0.02, "crash", "code 41"),
        (
            "not a number",
            "net.weight.data.fill_(float('nan')) if step % 5 == 4 else None",
            0.02,
            "nan",
            "no finite number",
        ),
        ("three times slower", "pass", 0.09, "slow", "times the"),
    ],
)
def test_a_bad_update_is_rolled_back_without_a_human(
    tmp_path: Path, what: str, extra: str, pause: float, kind: str, words: str
) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        (survived,) = wait_for(lambda: job.events("steps_survived"), "how long a step takes")
        wait_for_standbys(job)
        if kind == "slow":
            pause = max(pause, 4 * survived["step_s"])  # on a busy machine it takes longer than it should
        write_code(tmp_path, scale=3, extra=extra, pause=pause)
        robust(tmp_path, "update", "--when", "now", "--note", what, run=job)
        wait_for_fate(job, tmp_path, 2, "rolled_back")
        back = began(tmp_path, 2)
        assert (back["scale"], back["version"][0]) == (1, "1"), (
            "the version before, although the folder holds the bad one"
        )
        wait_for(lambda: [e for e in job.events("steps_survived") if e["attempt"] == 2], "training to go on")
        again = robust(tmp_path, "update", run=job, code=None)
        assert again.returncode != 0, "what was rolled back is not tried again"
        assert "rolled back" in again.stderr
        assert finish(job, tmp_path) == 0
        job.assert_nothing_left()
    rolled_back = job.actions("record_incident")[-1]
    assert rolled_back["action"] == "rollback"
    assert rolled_back["verdict"]["kind"] == kind
    assert words in rolled_back["verdict"]["sentence"]
    assert "version 2 (model.py" in rolled_back["verdict"]["aftermath"]
    assert what in rolled_back["verdict"]["aftermath"], "it says which change did it"


def test_what_does_not_compile_or_pass_its_check_is_never_staged(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        began(tmp_path, 0)
        wait_captured(job, tmp_path)
        (tmp_path / "model.py").write_text("def broken(:\n")
        refused = robust(tmp_path, "update", "--when", "now", run=job, code=2)
        assert "model.py:1" in refused.stderr
        write_code(tmp_path, scale=2)
        failing = ("update", "--check", "python3 -c 'import model; assert model.SCALE == 7, model.SCALE'")
        assert "--check" in robust(tmp_path, *failing, run=job, code=2).stderr
        assert fates(job, tmp_path) == {1: "trusted"}
        reasons = [event["reason"] for event in job.events("update_refused")]
        assert len(reasons) == 2, "refusals are on record"
        robust(tmp_path, "update", "--check", "python3 -c 'import model; assert model.SCALE == 2'", run=job)
        assert fates(job, tmp_path) == {1: "trusted", 2: "pending"}
        assert finish(job, tmp_path) == 0


def test_edits_in_the_folder_never_reach_a_later_attempt(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        write_code(tmp_path, scale=666)
        (tmp_path / "train.py").write_text("raise SystemExit('half an edit')")
        crash(job, 0)
        now = began(tmp_path, 1)
        assert now["scale"] == 1
        assert str(job.run_dir) in now["model"]
        assert Path(now["file"]).name == "train.py"
        assert finish(job, tmp_path) == 0


def test_arguments_and_variables_are_updated_like_code(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py", "--lr", "0.1", "--name=x") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        robust(tmp_path, "update", "--set", "lr=1e-4", "--env", "FLAVOUR=sweet", "--slower", "--when", "now", run=job)
        now = began(tmp_path, 1)
        assert now["argv"] == ["--lr", "1e-4", "--name=x"]
        assert now["flavour"] == "sweet"
        wait_for_fate(job, tmp_path, 2, "trusted")
        said = robust(tmp_path, "code", "rollback", "--reason", "too slow", run=job)
        assert "back to version 1" in said.stdout
        assert began(tmp_path, 2)["argv"] == ["--lr", "0.1", "--name=x"]
        assert robust(tmp_path, "update", "--env", "RANK=7", run=job, code=2).stderr.count("RANK") == 1
        assert finish(job, tmp_path) == 0


def test_warm_workers_run_the_new_code(tmp_path: Path) -> None:
    write_code(tmp_path)
    write_code(tmp_path / "clone", scale=2)
    with running(tmp_path, *OPTIONS, "train.py", prefix=PATIENT) as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        # They are made anew once what the optimizer imported is there too.
        wait_for(lambda: len(job.after("warm_ready", 2, "standby_ready")) >= 2, "standby workers")
        robust(tmp_path, "update", "--slower", "--dir", "clone", "--when", "now", run=job)
        now = began(tmp_path, 1)
        assert now["scale"] == 2
        assert "/code/at/" in now["file"], "from a copy, since the folder holds something else"
        (how,) = [event["how"] for event in job.events("attempt_started") if event["attempt"] == 1]
        assert how == ["promote", "promote"]
        wait_for_fate(job, tmp_path, 2, "trusted")
        assert finish(job, tmp_path) == 0


def test_two_updates_at_once_become_one_or_one_is_refused(tmp_path: Path) -> None:
    for name in ("", "ann", "bob"):
        write_code(tmp_path / name)
        (tmp_path / name / "other.py").write_text("A = 1\n\n\n\nB = 1\n")
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        (tmp_path / "ann" / "other.py").write_text("A = 2\n\n\n\nB = 1\n")
        (tmp_path / "bob" / "other.py").write_text("A = 1\n\n\n\nB = 2\n")
        both = [
            threading.Thread(
                target=robust, args=(tmp_path, "update", "--slower", "--dir", str(tmp_path / name)), kwargs={"run": job}
            )
            for name in ("ann", "bob")
        ]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert fates(job, tmp_path) == {1: "trusted", 2: "merged", 3: "pending"}
        patch = robust(tmp_path, "code", "diff", "1", "3", run=job).stdout
        assert "+A = 2" in patch
        assert "+B = 2" in patch
        (tmp_path / "ann" / "other.py").write_text("A = 3\n\n\n\nB = 3\n")
        conflict = robust(tmp_path, "update", "--dir", str(tmp_path / "ann"), run=job, code=2)
        assert "other.py" in conflict.stderr
        assert fates(job, tmp_path)[3] == "pending", "what was there still is"
        crash(job, 0)
        began(tmp_path, 1)
        wait_for_fate(job, tmp_path, 3, "trusted")
        assert finish(job, tmp_path) == 0


def test_a_commit_is_taken_and_one_that_vanished_is_refused(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        author = ("-c", "user.name=t", "-c", "user.email=t@t")
        done = subprocess.run(["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    write_code(tmp_path)
    (tmp_path / ".gitignore").write_text("began-*\nweights.*\nruns/\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    write_code(tmp_path, scale=2)
    git("commit", "-qam", "two")
    two = git("rev-parse", "HEAD")
    git("reset", "-q", "--hard", "HEAD~1")
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        (captured,) = job.events("code_captured")
        assert captured["version"]["commit"] == git("rev-parse", "HEAD")
        gone = robust(tmp_path, "update", "--ref", "0123456789" * 4, run=job, code=2)
        assert "no such commit" in gone.stderr
        write_code(tmp_path, scale=55)  # uncommitted: none of the commit's
        robust(tmp_path, "update", "--slower", "--ref", two, "--when", "now", run=job)
        now = began(tmp_path, 1)
        assert now["scale"] == 2
        wait_for_fate(job, tmp_path, 2, "trusted")
        assert finish(job, tmp_path) == 0


def test_an_edit_does_not_reach_an_attempt_that_imports_it_late(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("WHAT = 'as it was'\n")
    late = "import late; open(f'late-{step}', 'w').write(late.WHAT)"
    write_code(tmp_path, extra=f"if os.path.exists('import-now'): {late}")
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        (tmp_path / "late.py").write_text("half an edit (\n")
        (tmp_path / "import-now").touch()
        wait_for(lambda: next(tmp_path.glob("late-*"), None), "the module to be imported")
        assert finish(job, tmp_path) == 0
        assert {path.read_text() for path in tmp_path.glob("late-*")} == {"as it was"}
        assert "late.py was edited since; this attempt goes on with what it was" in job.out + job.err


def test_an_update_during_a_restart_storm(tmp_path: Path) -> None:
    write_code(tmp_path, extra="os._exit(7) if step % 8 == 6 else None")
    with running(tmp_path, *OPTIONS, "--max-restarts", "100", "train.py") as job:
        began(tmp_path, 0)
        wait_captured(job, tmp_path)
        write_code(tmp_path, scale=2)
        robust(tmp_path, "update", run=job)
        wait_for_fate(job, tmp_path, 2, "trusted")
        last = max(int(path.name.split("-")[1]) for path in tmp_path.glob("began-*-0"))
        assert began(tmp_path, last)["scale"] == 2, "the storm is over"
        assert finish(job, tmp_path) == 0


def test_a_launcher_that_is_resumed_knows_the_pending_update(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_captured(job, tmp_path)
        write_code(tmp_path, scale=2)
        robust(tmp_path, "update", "--slower", run=job)
        write_code(tmp_path, scale=99)  # not staged
        os.kill(job.agent_pid(), 9)
        job.process.kill()
        job.finish()
        wait_for(lambda: not job.leftovers(), "its workers to die with it")
    again = subprocess.Popen(
        [sys.executable, "-m", "robust_run", "--resume", str(job.run_dir)],
        cwd="/",
        env={**os.environ, "TEST_JOB": job.run_id},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        resumed = Job(again, job.run_dir.parent, job.run_id)
        assert began(tmp_path, 1)["scale"] == 2
        wait_for_fate(resumed, tmp_path, 2, "trusted")
        assert finish(resumed, tmp_path) == 0, resumed.err
        resumed.assert_nothing_left()
    finally:
        again.kill()
        again.communicate()


def test_code_copy_runs_from_the_copy_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("left in place")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("WHERE = __file__\n")
    path = script(
        tmp_path,
        """
        import os, sys, pkg
        here = os.path.dirname(os.path.abspath(__file__))
        print(here, pkg.WHERE, os.getcwd(), open(os.path.join(here, "data", "words.txt")).read(), sep="|")
        """,
    )
    code, job = run(tmp_path, "--code", "copy", path)
    assert code == 0
    here, package, cwd, words = job.out.strip().split("|")
    assert Path(here).parent == job.run_dir / "code" / "at"
    assert package == f"{here}/pkg/__init__.py"
    assert cwd == str(tmp_path)
    assert words == "left in place"


def test_a_module_runs_from_the_copy_too(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "side.py").write_text("WHERE = __file__\n")
    (tmp_path / "pkg" / "main.py").write_text("import pkg.side; print(__file__, pkg.side.WHERE, __name__, sep='|')\n")
    code, job = run(tmp_path, "--code", "copy", "-m", "pkg.main")
    assert code == 0, job.err
    main, side, name = job.out.strip().split("|")
    assert main.startswith(str(job.run_dir))
    assert side.startswith(str(job.run_dir))
    assert name == "__main__"


def test_in_place_nothing_is_kept_and_only_settings_change(tmp_path: Path) -> None:
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "--code", "in-place", "train.py") as job:
        (tmp_path / "train.py").touch()
        wait_for(lambda: job.events("code_captured"), "the first version")
        wait_for(lambda: (job.run_dir / "api.json").exists(), "somebody to ask")
        assert not (job.run_dir / "code").exists()
        assert "in place" in robust(tmp_path, "update", run=job, code=2).stderr
        job.signal(15)
        job.finish()


def test_a_program_that_is_nobodys_folder_just_runs(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--no-python", "/bin/true")
    assert code == 0
    (captured,) = job.events("code_captured")
    assert captured["version"].get("tree", "") == ""
