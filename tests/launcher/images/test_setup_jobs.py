"""`robust-run --setup`: real jobs of one node. Commands run once; its workers have what they brought, and nobody else has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from counting_server import counting_server
from jobs import PATIENT, Job, kill, script, wait_for
from made_checkpoints import make_checkpoint

from robust_run.launcher.records.memory_folders import remove_dead_memory
from tests.launcher.images.setup_ground import LOOK, Ground, ground_at, needs_setups, report_of

FAILS_ONCE = f"""{LOOK}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
"""
FAILS_ONCE_WARM = """
import os, sys, time
import tiny
print(os.environ["TORCHELASTIC_RESTART_COUNT"], tiny.VALUE, "decimal" in sys.modules, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with ground_at(tmp_path) as made:
        yield made


def keys(ground: Ground) -> list[str]:
    return sorted(path.name for path in ground.store.iterdir())


def test_the_first_run_installs_and_the_second_mounts(ground: Ground) -> None:
    path = script(ground.folder, LOOK)
    first = ground.run(*ground.options(ground.real_command), "--nproc-per-node", "2", path)
    assert first[0] == 0, first[1].err
    assert sorted(first[1].out.splitlines()) == ["1 True 0 0", "1 True 1 0"]
    second = ground.run(*ground.options(ground.real_command), path)
    assert (second[0], second[1].out) == (0, "1 True 0 0\n"), second[1].err
    assert ground.runs == 1, "the command is never run again"
    assert [report_of(job)["was_built"] for _, job in (first, second)] == [True, False]
    assert "1 package, built here" in first[1].err
    assert "1 package, built by" in second[1].err
    report = report_of(second[1])
    assert [(each["name"], each["version"]) for each in report["packages"]] == [("tiny", "1.0")]
    assert report["key"] in keys(ground)


FILES = """
import os, sys, tiny
from robust_run.ckpt_io.reading import open_checkpoint
top = os.environ["ROBUST_RESUME"]
print(tiny.VALUE, sys.argv[1:], os.listdir(top), len(open(f"{top}/x", "rb").read()), flush=True)
"""


def test_what_the_job_starts_from_comes_while_the_commands_run_and_its_files_are_where_workers_are(
    ground: Ground,
) -> None:
    size = 4 << 20
    make_checkpoint([ground.folder / "ckpt" / "step-7"], {"x": os.urandom(size)}, step=7)
    (ground.folder / "setup.sh").write_text(f"while [ ! -e go ]; do sleep 0.02; done\n{ground.command}\n")
    env = {"ROBUST_SETUP_FILE": "setup.sh", "ROBUST_SETUP_STORE": str(ground.store), "ROBUST_IMAGE_CACHE": "cache"}
    with counting_server(ground.folder) as server:
        words = ("--ckpt-dir", f"{server.url}/ckpt", "--ckpt-mount", script(ground.folder, FILES))
        with ground.running(*words, **env) as job:
            wait_for(lambda: server.sent_bytes >= size or job.process.poll() is not None, "the checkpoint")
            assert not job.events("attempt_started")
            (ground.folder / "go").touch()
            assert job.finish() == 0, job.err
            job.assert_nothing_left()
        assert job.out == f"1 [] ['x'] {size}\n"
        assert size <= server.sent_bytes < 1.1 * size, "the attempt goes on with what was begun"


def test_a_restart_does_not_install(ground: Ground) -> None:
    code, job = ground.run(*ground.options(), "--max-restarts", "1", script(ground.folder, FAILS_ONCE))
    assert (code, job.out) == (0, "1 True 0 0\n1 True 0 1\n"), job.err
    assert ground.runs == 1
    assert job.err.count("built here") == 1


def test_a_warm_process_lives_in_the_environment(ground: Ground) -> None:
    path = script(ground.folder, FAILS_ONCE_WARM)
    patient = (ground.python, *PATIENT[1:])
    with ground.running(*ground.options(), "--preload", "decimal", path, prefix=patient) as job:
        wait_for(lambda: job.events("standby_ready") or job.process.poll() is not None, "a standby worker")
        (ground.folder / "go").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    assert job.out == "0 1 False\n1 1 True\n"
    assert "promoted" in job.err


def test_changed_requirements_are_another_set_up(ground: Ground) -> None:
    path = script(ground.folder, LOOK)
    assert ground.run(*ground.options(), path)[1].out == "1 True 0 0\n"
    ground.requirements.write_text("tiny==2.0\n")
    assert ground.run(*ground.options(), path)[1].out == "2 True 0 0\n"
    ground.requirements.write_text("tiny==1.0\n")
    assert ground.run(*ground.options(), path)[1].out == "1 True 0 0\n"
    assert ground.runs == 2
    assert len(keys(ground)) == 2


def test_a_refresh_installs_anew(ground: Ground) -> None:
    path = script(ground.folder, LOOK)
    for _ in range(2):
        code, job = ground.run(*ground.options(), "--refresh-setup", path)
        assert (code, job.out) == (0, "1 True 0 0\n"), job.err
    assert ground.runs == 2
    assert len(keys(ground)) == 1


def test_a_script_of_commands_and_variables(ground: Ground) -> None:
    (ground.folder / "setup.sh").write_text(f"{ground.real_command}\n{ground.pip} tiny==2.0\n")
    text = (
        LOOK
        + "print([name for name in os.environ if name.startswith('ROBUST_SETUP')], 'ROBUST_REFRESH_SETUP' in os.environ)\n"
    )
    env = {"ROBUST_SETUP_FILE": "setup.sh", "ROBUST_SETUP_STORE": str(ground.store), "ROBUST_IMAGE_CACHE": "cache"}
    code, job = ground.run(script(ground.folder, text), **env)
    assert (code, job.out) == (0, "2 True 0 0\n['ROBUST_SETUP_STORE'] False\n"), job.err


FAILING = {
    "exits": ("echo first; echo the reason >&2; exit 7", ("ended with 7", "the reason", "set-up | first")),
    "no such package": ("{pip} nowhere", ("No matching distribution found for nowhere",)),
    "no such file": ("pip install -r nowhere.txt", ("nowhere.txt", "No such file")),
    "one after another": ("true\nfalse", ("ended with 1",)),
}


@pytest.mark.parametrize("mistake", FAILING)
def test_a_set_up_that_fails_starts_nothing(ground: Ground, mistake: str) -> None:
    text, named = FAILING[mistake]
    code, job = ground.run(*ground.options(text.format(pip=ground.pip)), script(ground.folder, LOOK))
    assert (code != 0, job.out) == (True, "")
    last = job.err.splitlines()[-1]
    assert last.startswith("robust-run: ")
    assert "set-up command" in last
    for word in named:
        assert word in job.err
    assert not list((ground.folder / "runs").glob("*")), "nothing was started, nothing was made"
    assert not list(ground.store.glob("*/snapshot.json"))


def test_a_snapshot_of_somebody_elses_is_refused(ground: Ground) -> None:
    for name in ("ours", "theirs"):
        (ground.folder / name).write_text(f"the secret of {name}, long enough\n")
        (ground.folder / name).chmod(0o600)
    path = script(ground.folder, LOOK)
    assert ground.run(*ground.options(), "--setup-token-file", "theirs", path)[0] == 0
    code, job = ground.run(*ground.options(), "--setup-token-file", "ours", path)
    assert (code, job.out) == (1, "")
    assert "signature" in job.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_set_up_ends_it_and_gives_its_lease_back(ground: Ground, number: int) -> None:
    waiting = f"{ground.command}; touch $TEST_FOLDER/up; test -e $TEST_FOLDER/go || sleep 1000"
    with ground.running(*ground.options(waiting), script(ground.folder, LOOK)) as job:
        job.wait_for_file("up", ground.folder)
        job.signal(number)
        assert job.finish() == 128 + number
        job.assert_nothing_left()
    assert f"{signal.Signals(number).name} came before the set-up was there" in job.err
    assert ground.left() == []
    (beat,) = ground.store.glob("*/lease/beat-*.json")
    assert json.loads(beat.read_text())["state"] == "left"
    (ground.folder / "go").touch()
    code, job = ground.run(*ground.options(waiting), script(ground.folder, LOOK))
    assert (code, job.out) == (0, "1 True 0 0\n"), job.err


def of_set_up(job: Job, word: str) -> list[int]:
    """The job's processes that have a word in their command line."""
    return [int(line.partition(":")[0]) for line in job.leftovers() if word in line]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("PPid:\t")[1].split()[0])


@pytest.mark.parametrize("store", ["store", "no folder"], ids=["captured", "in the environment"])
@pytest.mark.parametrize("victims", ["agent", "guard", "inside", "guard and agent", "all"])
def test_nothing_of_a_set_up_is_left_whoever_is_killed(ground: Ground, victims: str, store: str) -> None:
    """Processes of the commands, in sessions of their own too; and what they left on disk is gone with the next build."""
    (ground.folder / "no folder").write_text("so the commands are run in the environment")
    if (victims, store) == ("all", "no folder"):
        pytest.skip("what is not enclosed is ended by who is left")
    waiting = (
        f"{ground.command}; test -e $TEST_FOLDER/go || {{ touch $TEST_FOLDER/up; setsid sleep 1000 & sleep 1000; }}"
    )
    options = ("--setup", waiting, "--setup-store", store, "--image-cache", "cache")
    path = script(ground.folder, LOOK)
    with ground.running(*options, path) as job:
        job.wait_for_file("up", ground.folder)
        inside = min(of_set_up(job, "inside.main"))
        agent = parent_of(inside)
        chosen = {
            "agent": [agent], "guard": [job.pid], "inside": [inside], "guard and agent": [job.pid, agent],
            "all": [job.pid, agent, inside],
        }  # fmt: skip
        kill(*chosen[victims])
        assert job.finish() != 0
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()  # else the next job does
    if store == "store":
        (ground.folder / "go").touch()
        for left in ground.store.glob("*/lease"):  # else it is waited for
            shutil.rmtree(left)
        code, job = ground.run(*options, path)
        assert (code, job.out) == (0, "1 True 0 0\n"), job.err
    for left in (*ground.site.glob("tiny*"), *(ground.folder / "work").glob("*")):
        assert store != "store", "the environment is as it was, and no folder is left"
        shutil.rmtree(left)


def damage_image(ground: Ground, damaged: Callable[[bytes], bytes | None]) -> None:
    """Put something else in the place of the stored image, or nothing."""
    (image,) = ground.store.glob("*/*.sqsh")
    data = damaged(image.read_bytes())
    image.unlink()
    if data is not None:
        image.write_bytes(data)


def cut_manifest_short(ground: Ground) -> None:
    (manifest,) = ground.store.glob("*/snapshot.json")
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) // 2])


DAMAGES: dict[str, Callable[[Ground], None]] = {
    "image gone": lambda ground: damage_image(ground, lambda _data: None),
    "image cut short": lambda ground: damage_image(ground, lambda data: data[: len(data) // 2]),
    "image altered": lambda ground: damage_image(
        ground, lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]
    ),
    "manifest": cut_manifest_short,
}


def test_a_damaged_snapshot_is_built_anew(ground: Ground) -> None:
    """In whichever way it is damaged; the next job finds one that is whole."""
    path = script(ground.folder, LOOK)
    assert ground.run(*ground.options(), path)[0] == 0
    for runs, damage in enumerate(DAMAGES, start=2):
        DAMAGES[damage](ground)
        for number, how in enumerate(("built here", "built by")):
            code, job = ground.run(*ground.options(cache=f"{damage} {number}"), path)
            assert (code, job.out) == (0, "1 True 0 0\n"), job.err
            assert how in job.err, damage
            assert ("is damaged, so it is built anew" in job.err) == (how == "built here")
        assert ground.runs == runs


def test_a_job_that_is_resumed_says_what_is_wrong_with_its_snapshot(ground: Ground) -> None:
    text = f"{LOOK}\nimport time\nopen('up', 'w').close()\ntime.sleep(1000)\n"
    with ground.running(*ground.options(), script(ground.folder, text)) as job:
        job.wait_for_file("up", ground.folder)
        kill(job.pid, job.agent_pid())
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()
    shutil.rmtree(ground.folder / "cache")
    argv = [ground.python, "-m", "robust_run", "--resume", str(job.run_dir)]
    env = {**os.environ, **ground.keywords()["env"]}
    for victim, said in (("*/*.sqsh", "no such file"), ("*/snapshot.json", "it was removed")):
        next(ground.store.glob(victim)).unlink()
        done = subprocess.run(argv, cwd=ground.folder, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1], done.stderr
    assert ground.runs == 1


def test_a_project_that_is_built_in_its_own_folder_is_installed_once(ground: Ground) -> None:
    """setup.py writes into the project; the second start must not take that for a change."""
    project = ground.folder / "project"
    (project / "tiny").mkdir(parents=True)
    (project / "setup.py").write_text("raise SystemExit('not run by this test')\n")
    (project / "tiny/__init__.py").write_text("VALUE = 1\n")
    command = f"mkdir -p {project}/build/lib && cp -r {project}/tiny {project}/build/lib/ && {ground.command}"
    path = script(ground.folder, LOOK)
    for how in ("built here", "built by"):
        code, job = ground.run(*ground.options(f"ls {project}; {command}"), path)
        assert (code, job.out) == (0, "1 True 0 0\n"), job.err
        assert how in job.err
    assert ground.runs == 1


@pytest.mark.parametrize("victims", ["agent", "guard", "guard and agent"])
def test_nothing_is_left_whoever_is_killed_while_workers_run(ground: Ground, victims: str) -> None:
    text = f"{LOOK}\nimport time\nopen('up', 'w').close()\ntime.sleep(1000)\n"
    with ground.running(*ground.options(), script(ground.folder, text)) as job:
        job.wait_for_file("up", ground.folder)
        chosen = {"agent": [job.agent_pid()], "guard": [job.pid], "guard and agent": [job.pid, job.agent_pid()]}
        kill(*chosen[victims])
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()  # else the next job does


def test_where_nothing_can_be_stored_the_commands_are_run_in_the_environment(ground: Ground) -> None:
    ground.store.write_text("this is no folder")
    code, job = ground.run(
        *ground.options(ground.real_command), "--max-restarts", "1", script(ground.folder, FAILS_ONCE)
    )
    assert (code, job.out) == (0, "1 True 0 0\n1 True 0 1\n"), job.err
    assert "its commands are run on each node" in job.err
    assert ground.runs == 1, "not by the restart"
    for left in ground.site.glob("tiny*"):
        shutil.rmtree(left)


def test_what_workers_change_ends_with_the_job(ground: Ground) -> None:
    text = LOOK + "print(os.path.exists(tiny.__file__ + '.new')); open(tiny.__file__ + '.new', 'w').close()\n"
    path = script(ground.folder, text)
    for _ in range(2):
        code, job = ground.run(*ground.options(), path)
        assert (code, job.out) == (0, "1 True 0 0\nFalse\n"), job.err


def test_a_job_that_is_resumed_restores_what_it_had(ground: Ground) -> None:
    text = f"{LOOK}\nimport time\nopen('up', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    with ground.running(*ground.options(), "--refresh-setup", script(ground.folder, text)) as job:
        job.wait_for_file("up", ground.folder)
        kill(job.pid, job.agent_pid())
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()
    (ground.folder / "go").touch()
    ground.requirements.write_text("tiny==2.0\n")
    argv = [ground.python, "-m", "robust_run", "--resume", str(job.run_dir)]
    env = {**os.environ, **ground.keywords()["env"]}
    done = subprocess.run(argv, cwd=ground.folder, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1 True 0 1\n"), done.stderr
    assert ground.runs == 1


def test_without_a_set_up_nothing_of_it_is_imported(tmp_path: Path) -> None:
    code = """
import sys, os
import robust_run.launcher.agent.workers.workers as workers
def stop(*args, **kwargs):
    words = ("snapshot", "launcher.setup", "launcher.place")
    print([name for name in sys.modules if any(word in name for word in words)], flush=True)
    os._exit(0)
workers.start = stop
from robust_run.cli import run
run(sys.argv[1:], os.environ)
"""
    argv = [sys.executable, "-c", code, "--log-dir", str(tmp_path / "runs"), script(tmp_path, "")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_an_ordinary_user_has_it_in_a_user_namespace() -> None:
    """And keeps the number that the user has."""
    needs_setups()
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, with setpriv")
    python = "/usr/bin/python3"
    if not is_this_python(python):
        pytest.skip(f"{python} is not this Python, which other users could run")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    folder = Path(tempfile.mkdtemp(prefix="robust-test-", dir="/tmp"))
    try:
        with ground_at(folder, python) as ground:
            path = script(folder, f"{LOOK}\nprint(os.getuid())\n")
            subprocess.run(["chown", "-R", "65534:65534", str(folder)], check=True)
            done = subprocess.run(
                [*user, ground.python, "-c", "import robust_run, msgspec, pip"], env=os.environ | {"HOME": "/"}
            )
            if done.returncode != 0:
                pytest.skip("packages of this Python are not for other users")
            for how in ("built here", "built by"):
                code, job = ground.run(*ground.options(ground.real_command), path, prefix=user)
                assert (code, job.out) == (0, "1 True 0 0\n65534\n"), job.err
                assert how in job.err
            assert ground.runs == 1
    finally:
        shutil.rmtree(folder)
        with suppress(OSError):  # where that user's images would be unpacked
            os.rmdir("/dev/shm/robust-run-65534")


def is_this_python(python: str) -> bool:
    """Whether another interpreter is of our version, and can make virtual environments."""
    code = "import venv, sys; print(*sys.version_info[:2])"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    return said == [str(part) for part in sys.version_info[:2]]
