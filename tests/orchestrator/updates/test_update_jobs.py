"""Real jobs whose rollouts are given new code while they run: one after the other, kept once, and back when it is bad."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner
from jobs import kill, running, script, unused_port, wait_for
from role_jobs import BARE, RoleJob, nodes_of

from robust_run import robust_cli
from robust_run.errors import RobustRunError

WORKER = """
import os, time
from pathlib import Path
import helper
from robust_run import roles
me = roles.me()
which = f"{me.role}-{me.index}.{me.serial}.{me.attempt}"
Path(f"ran-{which}-{os.getpid()}").touch()
Path(f"value-{which}-{helper.VALUE}").touch()
if helper.VALUE == "bad":
    raise SystemExit(3)
roles.ready()
while not Path("over").exists():
    time.sleep(0.05)
"""

ROLES = f"""
[roles.trainer]
command = "worker.py"
{BARE}
ends = "job"

[roles.rollout]
command = "worker.py"
{BARE}
members = 2
fewest = 1
most = 3
restart = "alone"
ready = "called"
"""


def robust(*words: str) -> str:
    """Carry out a command here, where all is imported; return what it prints. Raises what it raises."""
    return CliRunner().invoke(robust_cli.robust, words, catch_exceptions=False, standalone_mode=False).output


def asked(*words: str) -> str:
    """Return what a command prints, or what is said of its failure: what is asked for may not be there yet."""
    try:
        return robust(*words)
    except RobustRunError as error:
        return str(error)


def typed(*words: str) -> tuple[int, str]:
    """Run a command as it is typed; return its exit code and what it prints."""
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def value(folder: Path, text: str) -> None:
    """Change the code."""
    (folder / "helper.py").write_text(f"VALUE = {text!r}\n")


def values(folder: Path, name: str) -> dict[str, str]:
    """Return what each start of a member ran, by launcher and attempt."""
    found = [each.name.removeprefix(f"value-{name}.").split("-") for each in folder.glob(f"value-{name}.*")]
    return dict(found)  # type: ignore[arg-type]


@contextmanager
def job(folder: Path, *more: str) -> Iterator[RoleJob]:
    """Start a job of a trainer and two rollouts that run until they are told."""
    script(folder, WORKER, "worker.py")
    value(folder, "one")
    (folder / "roles.toml").write_text(ROLES)
    with running(folder, "--roles", "roles.toml", *more) as started:
        yield RoleJob(started, folder)


def began(roles: RoleJob) -> str:
    """Return the run directory, once the code that rollouts began with is on record."""
    run = str(roles.job.run_dir)
    first = "as the job was started"
    wait_for(lambda: first in asked("code", "log", run, "--role", "rollout"), "the first version")
    return run


def runs(folder: Path, name: str, which: str, text: str) -> None:
    """Wait until a start of a member runs this code."""
    wait_for(lambda: values(folder, name).get(which) == text, f"{name} to run {text} as {which}")


def test_a_version_reaches_one_role_one_by_one_also_past_a_leader_that_is_killed(tmp_path: Path) -> None:
    with job(tmp_path) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        run = began(roles)
        value(tmp_path, "two")
        code, said = typed("update", run, "--role", "rollout", "--when", "now")
        assert (code, "one member after the other" in said) == (0, True), said
        runs(tmp_path, "rollout-0", "1.1", "two")
        kill(roles.leader())
        runs(tmp_path, "rollout-1", "1.1", "two")
        assert values(tmp_path, "trainer-0") == {"1.0": "one"}
        (tmp_path / "over").touch()
        assert roles.job.finish() == 0, roles.job.err
        roles.job.assert_nothing_left()
        events = robust("events", run)
        for name in ("rollout/0", "rollout/1"):
            assert events.count(f"{name} begins again: version 2 ") == 1, events
            assert events.count(f"{name} runs (generation 2)") == 1, "also past the leader that was killed"
        assert " failed: " not in events
        assert "0 losses" in robust("top", run)


def test_a_bad_one_stops_at_the_first_and_who_is_added_later_has_what_the_role_runs(tmp_path: Path) -> None:
    with job(tmp_path) as roles:
        untouched = {name: roles.pid(name) for name in ("trainer-0", "rollout-1")}
        run = began(roles)
        value(tmp_path, "bad")
        robust("update", run, "--role", "rollout", "--when", "now")
        runs(tmp_path, "rollout-0", "1.1", "bad")
        runs(tmp_path, "rollout-0", "1.2", "one")
        wait_for(lambda: "version 2 rolled back, 0 of 2 members run it" in robust("roles", run), "it to be rolled back")
        code, said = typed("update", run, "--role", "rollout")
        assert (code, "which was rolled back" in said) == (2, True), said
        value(tmp_path, "edited since")
        robust("roles", "scale", run, "rollout", "3")
        runs(tmp_path, "rollout-2", "1.0", "one")
        assert {name: roles.newest(name) for name in untouched} == untouched
        members = roles.job.run_dir / "members"
        copies = {os.path.realpath(members / f"rollout-{index}.1" / "code" / "at") for index in range(3)}
        assert copies == {str(roles.job.run_dir / "code" / "at" / "rollout")}
        (tmp_path / "over").touch()
        assert roles.job.finish() == 0, roles.job.err
        roles.job.assert_nothing_left()


def test_without_now_it_waits_for_a_failure_of_each(tmp_path: Path) -> None:
    with job(tmp_path) as roles:
        pids = [roles.pid(name) for name in ("rollout-0", "rollout-1")]
        run = str(roles.job.run_dir)
        wait_for(
            lambda: "as the job was started" in asked("code", "log", run, "--role", "rollout"), "the first version"
        )
        value(tmp_path, "two")
        assert "takes it up at its next failure" in robust("update", run, "--role", "rollout")
        for index in range(2):
            printed = roles.job.run_dir / "members" / f"rollout-{index}.1.out"
            wait_for(lambda path=printed: "is staged and put in place" in path.read_text(), "it to be staged")  # type: ignore[misc]
        kill(pids[1])
        runs(tmp_path, "rollout-1", "1.1", "two")
        wait_for(lambda: "version 2 on probation, 1 of 2 members run it" in robust("roles", run), "it to be tried")
        kill(roles.launcher("rollout-0"))
        runs(tmp_path, "rollout-0", "2.0", "one")  # another tries it already
        (tmp_path / "over").touch()
        assert roles.job.finish() == 0, roles.job.err


def test_another_node_gets_the_code_that_its_members_are_to_run(tmp_path: Path) -> None:
    """Its folder of runs is its own."""
    place = f"127.0.0.1:{unused_port()}"
    meets = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "r")
    with job(tmp_path, *meets, "--node-name", "a") as a:
        wait_for(lambda: list(tmp_path.glob("runs/*/roles.place")), "a to lead")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        with running(tmp_path, "--roles", "roles.toml", *meets, "--node-name", "b", log_dir=elsewhere / "runs") as b:
            for name in ("rollout-0", "rollout-1"):
                a.pid(name)
            run = str(a.job.run_dir)
            value(tmp_path, "two")
            wait_for(
                lambda: "as the job was started" in asked("code", "log", run, "--role", "rollout"), "the first version"
            )
            robust("update", run, "--role", "rollout", "--when", "now")
            for name in ("rollout-0", "rollout-1"):
                runs(tmp_path, name, "1.1", "two")
            assert {node for name, nodes in nodes_of(a).items() if "rollout" in name for node in nodes} == {"a", "b"}
            (tmp_path / "over").touch()
            assert a.job.finish() == 0, a.job.err
            assert b.finish() == 0, b.err
