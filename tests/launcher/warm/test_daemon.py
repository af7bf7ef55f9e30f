"""Jobs that start from a per-user warm process: that they are the jobs they would have been, and that they end as they would.

Real processes, in folders of the tests' own. Most tests share one warm process; those that harm it start their own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, run, running, script, wait_for

from robust_run.launcher.start.warm import registry

PROBE = Path(__file__).with_name("probe.py")
ROBUST = (sys.executable, "-c", "from robust_run.robust_cli import main; main()")

#: Tests run on machines that are busy: a warm process that answers late is none of their business.
PATIENT = {"ROBUST_WARM_DAEMON": "30"}

#: For tests in which it does not matter what is imported: torch takes seconds.
LIGHT = ("--preload", "json")


class Warm:
    """The warm processes of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"ROBUST_WARM_FOLDER": str(folder), **PATIENT}

    def robust(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `robust warm ...`."""
        return subprocess.run(
            [*ROBUST, "warm", *arguments],
            env={**os.environ, **self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=170,
        )

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> int:
        """Start one and return its pid."""
        done = self.robust("start", *arguments, env=env)
        assert done.returncode == 0, done.stderr
        return self.pids()[-1]

    def status(self) -> list[dict[str, Any]]:
        return json.loads(self.robust("status", "--json").stdout)["processes"]  # type: ignore[no-any-return]

    def pids(self) -> list[int]:
        return [each["pid"] for each in self.status()]

    def kill(self) -> None:
        for lock in self.folder.glob("*.lock"):
            pid = registry.holder(str(lock))
            if pid > 0:
                os.kill(pid, signal.SIGKILL)


@contextmanager
def a_folder() -> Iterator[Warm]:
    """A folder with a path that is short enough for a socket; nothing in it survives."""
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    warm = Warm(folder)
    try:
        yield warm
    finally:
        folder.chmod(0o700)
        warm.kill()
        shutil.rmtree(folder)


@pytest.fixture
def own() -> Iterator[Warm]:
    """No warm process yet."""
    with a_folder() as warm:
        yield warm


@pytest.fixture(scope="module")
def shared() -> Iterator[Warm]:
    """One warm process for jobs of several workers and one for jobs of one, that no test may harm."""
    with a_folder() as warm:
        warm.start()
        warm.start("--one-worker")
        yield warm


def how(job: Job) -> list[list[str]]:
    return [event["how"] for event in job.events("attempt_started")]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


HELLO = "print('hello')"

SLEEP = """
import os, pathlib, subprocess, time
pathlib.Path("child").write_text(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
pathlib.Path(f"up-{os.environ['RANK']}").touch()
time.sleep(600)
"""

UNTIL_TOLD = """
import os, pathlib, time
pathlib.Path(f"up-{os.environ['RANK']}").touch()
while not os.path.exists("go"):
    time.sleep(0.005)
raise SystemExit(int(os.environ["RANK"]) * 7)
"""

SAY_AND_FAIL = """
import os, pathlib, sys, time
os.write(1, b"out\\n")  # as a whole, which `print` does not do: the workers share the stream
os.write(2, b"err\\n")
pathlib.Path(f"said-{os.environ['RANK']}").touch()
while not all(os.path.exists(f"said-{rank}") for rank in (0, 1)):
    time.sleep(0.005)
sys.exit(9)
"""


# --- start, status, stop ---


def test_one_is_started_shown_and_stopped(own: Warm) -> None:
    assert own.robust("status").returncode == 1
    pid = own.start("--idle-limit", "2h")
    (seen,) = own.status()
    assert (seen["pid"], seen["state"], seen["served"], seen["idle_limit_s"]) == (pid, "idle", 0, 7200.0)
    assert seen["modules"] == ["torch", "torch.distributed"]
    assert seen["not_used"] == ""
    assert "OMP_NUM_THREADS" in seen["not_used_by_one_worker"]
    line = own.robust("status", "--explain").stdout
    assert f"pid {pid}, idle" in line
    assert "jobs of several workers started here use it" in line
    stopped = own.robust("stop")
    assert stopped.stdout == f"robust: warm process {pid} ended\n"
    assert is_gone(pid)
    assert [path.suffix for path in own.folder.iterdir()] == [".log"]
    assert own.robust("status").returncode == own.robust("stop").returncode == 1


def test_a_second_start_finds_the_first(own: Warm) -> None:
    pid = own.start(*LIGHT)
    again = own.robust("start", *LIGHT)
    assert (again.returncode, again.stdout) == (0, f"robust: a warm process runs already (pid {pid})\n")
    assert own.pids() == [pid]


def test_of_several_one_must_be_named(shared: Warm) -> None:
    refused = shared.robust("stop")
    assert refused.returncode == 2
    assert "name one" in refused.stderr
    assert len(shared.pids()) == 2
    assert "is no warm process of yours" in shared.robust("stop", str(os.getpid())).stderr


def test_in_the_foreground_it_ends_with_the_command(own: Warm, tmp_path: Path) -> None:
    argv = [*ROBUST, "warm", "start", "--foreground", *LIGHT]
    with (tmp_path / "said").open("w") as said:
        command = subprocess.Popen(argv, env={**os.environ, **own.env}, stdout=said)
    try:
        wait_for(lambda: "has imported" in (tmp_path / "said").read_text(), "the warm process")
        (pid,) = own.pids()
        assert parent_of(pid) == command.pid
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == 0
        assert is_gone(pid)
    finally:
        command.kill()
        command.wait()


def test_it_ends_after_its_idle_limit(own: Warm) -> None:
    assert own.robust("start", "--idle-limit", "0.01s", *LIGHT).returncode == 0
    wait_for(lambda: not list(own.folder.glob("*.lock")) and not own.pids(), "its end")
    assert "which is its limit" in next(own.folder.glob("*.log")).read_text()


def test_a_module_that_cannot_be_forked_is_named(own: Warm, tmp_path: Path) -> None:
    text = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True, name='mine').start()\n"
    )
    script(tmp_path, text, "starts_a_thread.py")
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}
    refused = own.robust("start", "--preload", "json,starts_a_thread", env=env)
    assert refused.returncode == 2
    assert "starts_a_thread cannot be preloaded: after it, a Python thread runs (mine)" in refused.stderr
    assert own.pids() == []


# --- a job through it ---


def facts_of(tmp_path: Path, name: str, env: dict[str, str]) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run the probe as rank 0 of a job; return what it sees, with the job's name taken out, and what the user sees."""
    place = tmp_path / name
    place.mkdir()
    (place / "in").write_text("a line\nanother\n")
    shutil.copy(PROBE, place)
    text = """
        import os, runpy
        if os.environ["RANK"] == "0":
            line = input()
            runpy.run_path("probe.py", run_name="__main__")
            print("read:", line)
        """
    options = ("--max-restarts", "0", "--log-dir", "logs", "--run-id", name)
    arguments = (*options, script(place, text), "--lr", "ä", str(place / "facts"))
    launcher = "import os; os.umask(0o27); os.nice(3); from robust_run.cli import main; main()"
    with (place / "in").open() as stdin:
        done = subprocess.run(
            [sys.executable, "-c", launcher, "--nproc-per-node", "2", *arguments],
            env={**os.environ, "ROBUST_PROBE_TORCH": "1", **env},
            cwd=place,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=170,
        )
    assert done.returncode == 0, done.stderr
    return json.loads((place / "facts").read_text().replace(name, "NAME")), done


VARY = ("MASTER_PORT", "ROBUST_WARM_DAEMON", "ROBUST_ARM_PYTHONPATH", "ROBUST_STEPS_FILE", "ROBUST_REPORT")


def test_its_workers_see_what_workers_started_from_nothing_see(shared: Warm, tmp_path: Path) -> None:
    """Arguments, streams, environment, folder, umask, priority, limits, signals, descriptors, threads."""
    env = {**shared.env, "MY_OWN": "1", "SLURM_JOB_NAME": "2"}
    plain, from_nothing = facts_of(tmp_path, "of-nothing", {**env, "ROBUST_WARM_DAEMON": "off"})
    warm, from_warm = facts_of(tmp_path, "of-warmth", env)
    assert "started from the warm process" in from_warm.stderr
    assert from_nothing.stdout == from_warm.stdout == "read: a line\n"
    assert set(plain.pop("modules")) <= set(warm.pop("modules"))
    for facts in (plain, warm):
        facts["environ"] = {name: value for name, value in facts["environ"].items() if name not in VARY}
        lines = [line for line in facts["environ in proc"] if line.partition("=")[0] not in VARY]
        facts["environ in proc"] = [line for line in lines if not line.startswith("PYTHONPATH=")]
        # The step counter is opened when torch is imported, which is sooner in one of them.
        facts["descriptors"] = {
            key: path
            for key, path in facts["descriptors"].items()
            if not path.endswith((".steps", ".ring", ".stacks", ".marks"))
        }
        # glibc handles signal 33 itself once there has been a thread, as in a warm process.
        facts["signals in proc"] = [f"{int(line.split()[1], 16) & ~(1 << 32):x}" for line in facts["signals in proc"]]
    assert {name: (plain[name], warm[name]) for name in plain if plain[name] != warm.get(name)} == {}


def test_exit_code_and_output_are_those_of_any_job(shared: Warm, tmp_path: Path) -> None:
    path = script(tmp_path, SAY_AND_FAIL)
    code, job = run(tmp_path, "--max-restarts", "0", "--nproc-per-node", "2", path, env=shared.env)
    assert code == 9
    assert job.out == "out\n" * 2
    assert job.err.count("err\n") >= 2
    assert how(job) == [["fork", "fork"]]
    assert job.events("attempt_started")[0]["why"] == ""
    assert f"started from the warm process (pid {shared.pids()[0]})" in job.err


def test_what_nobody_closed_is_written_when_its_workers_end(shared: Warm, tmp_path: Path) -> None:
    text = "import os\nleft = open('left' + os.environ['RANK'], 'w')\nleft.write('all of it')\ndef use(): return left\n"
    (tmp_path / "leaves.py").write_text(text)
    code, job = run(tmp_path, "--nproc-per-node", "2", "-m", "leaves", env=shared.env, cwd=tmp_path)
    assert (code, "started from the warm process" in job.err) == (0, True), job.err
    assert [(tmp_path / f"left{rank}").read_text() for rank in range(2)] == ["all of it"] * 2


def test_a_job_of_one_worker_has_its_own_kind_and_ignores_what_the_launcher_was_started_with_ignored(
    shared: Warm, tmp_path: Path
) -> None:
    """The warm process ignores none of them. SIGINT is one that a job is told to end with: we pass it on."""
    numbers = [int(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)]
    ignores = (
        f"import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in {numbers}]; "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    text = f"import signal, sys; print('torch' in sys.modules, *(signal.getsignal(n) == signal.SIG_IGN for n in {numbers}))"
    code, job = run(tmp_path, script(tmp_path, text), env=shared.env, prefix=(sys.executable, "-c", ignores))
    assert (code, job.out, how(job)) == (0, "True True False True\n", [["fork"]])


def test_after_a_kill_it_heals_as_ever(shared: Warm, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4
        open(f"reduced-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{dist.get_rank()}", "w").close()
        while os.environ["TORCHELASTIC_RESTART_COUNT"] != "2":
            dist.all_reduce(x.fill_(1))
            time.sleep(0.005)
        """,
    )
    with running(tmp_path, "--nproc-per-node", "2", path, env=shared.env) as job:
        for attempt in (0, 1):
            for rank in (0, 1):
                job.wait_for_file(f"reduced-{attempt}-{rank}", tmp_path)
            os.kill(job.pids(attempt)[attempt], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert len(how(job)) == 3
    assert all("spawn" not in rungs for rungs in how(job))
    assert [event["pid"] for event in job.events("warm_ready")] != shared.pids()[:1], "each job has a fork of its own"


def test_two_jobs_at_once(shared: Warm, tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        script(place, UNTIL_TOLD)
    arguments = ("--nproc-per-node", "2", "--max-restarts", "0", "train.py")
    with (
        running(places[0], *arguments, env=shared.env) as first,
        running(places[1], *arguments, env=shared.env) as second,
    ):
        for place in places:
            for rank in (0, 1):
                first.wait_for_file(f"up-{rank}", place)
        (both,) = [each["running"] for each in shared.status() if each["running"]]
        assert set(both) == {first.run_id, second.run_id}
        (places[0] / "go").touch()
        assert first.finish() == 7
        first.assert_nothing_left()
        assert second.process.poll() is None
        (places[1] / "go").touch()
        assert second.finish() == 7
        second.assert_nothing_left()
    assert how(first) == how(second) == [["fork", "fork"]]


# --- ends ---


@contextmanager
def sleeping(tmp_path: Path, warm: Warm) -> Iterator[Job]:
    """A job with a child that has run away from its worker."""
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, SLEEP), env=warm.env) as job:
        for rank in (0, 1):
            job.wait_for_file(f"up-{rank}", tmp_path)
        assert how(job) == [["fork", "fork"]]
        yield job


def test_ctrl_c_ends_it(shared: Warm, tmp_path: Path) -> None:
    with sleeping(tmp_path, shared) as job:
        job.signal(signal.SIGINT)
        assert job.finish() == 128 + signal.SIGINT
        job.assert_nothing_left()
    assert "SIGINT: passed to the workers" in job.err


def test_a_killed_guard_takes_the_job_along(shared: Warm, tmp_path: Path) -> None:
    with sleeping(tmp_path, shared) as job:
        job.signal(signal.SIGKILL)
        job.finish()
        job.assert_nothing_left()
    assert job.events("guard_lost")


def test_a_killed_agent_leaves_nothing(shared: Warm, tmp_path: Path) -> None:
    with sleeping(tmp_path, shared) as job:
        agent = job.agent_pid()
        assert parent_of(agent) == shared.pids()[0]
        os.kill(agent, signal.SIGKILL)
        assert job.finish() == 128 + signal.SIGKILL
        job.assert_nothing_left(timeout_s=0.0)
    assert f"the agent (pid {agent}) was killed by SIGKILL; its workers were ended" in job.err
    assert not any(each["running"] for each in shared.status())


def test_a_killed_warm_process_harms_no_job(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    path = script(tmp_path, UNTIL_TOLD)
    with running(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", *LIGHT, path, env=own.env) as job:
        for rank in (0, 1):
            job.wait_for_file(f"up-{rank}", tmp_path)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_gone(pid), "its end")
        (tmp_path / "go").touch()
        assert job.finish() == 7
        job.assert_nothing_left()
    assert how(job) == [["fork", "fork"]]


def test_after_the_warm_process_a_killed_agent_still_takes_its_workers_along(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    path = script(tmp_path, UNTIL_TOLD)
    with running(tmp_path, "--nproc-per-node", "2", *LIGHT, path, env=own.env) as job:
        for rank in (0, 1):
            job.wait_for_file(f"up-{rank}", tmp_path)
        os.kill(pid, signal.SIGKILL)
        os.kill(job.agent_pid(), signal.SIGKILL)
        assert job.finish() == 128 + signal.SIGKILL
        job.assert_nothing_left()


def test_stopping_it_lets_its_jobs_go_on(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    path = script(tmp_path, UNTIL_TOLD)
    with running(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", *LIGHT, path, env=own.env) as job:
        for rank in (0, 1):
            job.wait_for_file(f"up-{rank}", tmp_path)
        assert "takes no more jobs" in own.robust("stop").stdout
        assert own.pids() == []
        assert not is_gone(pid)
        (tmp_path / "go").touch()
        assert job.finish() == 7
        wait_for(lambda: is_gone(pid), "its end after its last job")
        job.assert_nothing_left()


# --- not used, and said why ---


def refused(tmp_path: Path, warm: Warm, *arguments: str, **more: Any) -> str:
    """Run a job that must start from nothing, once, and return the line about the warm process."""
    env = {**warm.env, **more.pop("env", {})}
    path = script(tmp_path, "import os; open('ran', 'a').write(os.environ['RANK'])")
    options = ("--nproc-per-node", "2", "--max-restarts", "0")  # it starts no warm process of its own beside it
    code, job = run(tmp_path, *arguments, *options, path, env=env, **more)
    assert code == 0, job.err
    assert sorted((tmp_path / "ran").read_text()) == ["0", "1"], "it ran once"
    (tmp_path / "ran").unlink()
    assert how(job) == [["spawn", "spawn"]]
    lines = [line for line in job.err.splitlines() if "warm process" in line]
    assert len(lines) <= 1, lines
    return lines[0] if lines else ""


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"PYTHONHASHSEED": "3"}, "PYTHONHASHSEED is unset there and '3' here"),
        ({"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND is unset there and 'true' here"),
        ({"OMP_NUM_THREADS": "3"}, "OMP_NUM_THREADS is '1' there and '3' here"),
        ({"COVERAGE_PROCESS_START": "x"}, "coverage must see every process"),
        ({"ROBUST_JOB": "outer"}, "a job inside a job"),
        ({"ROBUST_WARM_DAEMON": "off"}, ""),
    ],
)
def test_another_environment(shared: Warm, tmp_path: Path, env: dict[str, str], reason: str) -> None:
    line = refused(tmp_path, shared, env=env)
    assert reason in line
    assert bool(line) == bool(reason)


def test_no_warm(shared: Warm, tmp_path: Path) -> None:
    assert refused(tmp_path, shared, "--no-warm") == ""


def test_other_modules(shared: Warm, tmp_path: Path) -> None:
    assert "it has not imported sympy" in refused(tmp_path, shared, "--preload", "torch,sympy")


def test_other_limits(shared: Warm, tmp_path: Path) -> None:
    line = refused(tmp_path, shared, prefix=("prlimit", "--nofile=900:900"))
    assert "its limit 'Max open files' differs" in line


def test_other_cpus(shared: Warm, tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU is all this machine has")
    assert "its CPUs" in refused(tmp_path, shared, prefix=("taskset", "--cpu-list", str(cpus[0])))


def test_another_namespace(shared: Warm, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces may be made here")
    line = refused(tmp_path, shared, prefix=("unshare", "--uts"))
    assert "its uts namespace differs" in line


SEEN_FROM_INSIDE = """
sleep 300 &
{robust} warm status > {folder}/status 2>&1
{robust} warm stop > {folder}/said 2>&1; echo $? > {folder}/code
{robust} warm stop --all >> {folder}/said 2>&1
{robust} warm start --preload json >> {folder}/said 2>&1
kill -0 $! && echo lives > {folder}/neighbour
"""


def test_one_of_another_container_is_not_ended_from_this_one_nor_is_anybody_else(own: Warm, tmp_path: Path) -> None:
    """It has no number there. To the kernel, what stands in for one means everybody."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root makes a PID namespace with unshare")
    pid = own.start(*LIGHT)
    inside = SEEN_FROM_INSIDE.format(robust=shlex.join(ROBUST), folder=shlex.quote(str(tmp_path)))
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    subprocess.run([*namespace, "sh", "-c", inside], env={**os.environ, **own.env}, check=False, timeout=170)
    assert (tmp_path / "neighbour").exists(), "all processes of the container were told to end"
    assert (tmp_path / "code").read_text() == "2\n"
    said = (tmp_path / "said").read_text()
    assert said.count("can be stopped where it was started, not from here") == 2
    assert "set ROBUST_WARM_FOLDER to another folder" in said
    assert "pid -1" not in (tmp_path / "status").read_text()
    assert own.pids() == [pid]


def test_fewer_capabilities(shared: Warm, tmp_path: Path) -> None:
    prefix = ("setpriv", "--no-new-privs")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    assert "no_new_privs" in refused(tmp_path, shared, prefix=prefix)


def test_a_folder_that_others_can_enter(own: Warm, tmp_path: Path) -> None:
    own.start(*LIGHT)
    own.folder.chmod(0o755)
    line = refused(tmp_path, own)
    assert "is not looked into for warm processes: its mode is 0755, not 0700" in line
    assert own.robust("start").returncode == 2
    own.folder.chmod(0o700)


def test_another_user(own: Warm, tmp_path: Path) -> None:
    """The folder keeps others out; were it open, the warm process would still send them away."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to be somebody else")
    own.start(*LIGHT)
    (sock,) = own.folder.glob("*.sock")
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(30); s.connect(sys.argv[1])\n"
        'try: s.send(b\'{"type":"ask_status"}\'); print(s.recv(4096))\n'
        "except (BrokenPipeError, ConnectionResetError): print(b'')"
    )
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env", "python3", "-c", code)
    closed = subprocess.run([*nobody, str(sock)], capture_output=True, text=True, cwd="/")
    assert "PermissionError" in closed.stderr
    own.folder.chmod(0o755)
    sock.chmod(0o666)
    opened = subprocess.run([*nobody, str(sock)], capture_output=True, text=True, cwd="/")
    assert opened.stdout.strip() == "b''", opened.stderr
    wait_for(lambda: "user 65534 was refused" in next(own.folder.glob("*.log")).read_text(), "it to be noted")


def test_one_that_was_killed_is_not_missed_and_is_started_anew(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: is_gone(pid), "its end")
    assert list(own.folder.glob("*.sock"))
    assert own.robust("status").returncode == 1
    assert refused(tmp_path, own, *LIGHT) == ""
    second = own.start(*LIGHT)
    code, job = run(tmp_path, "--nproc-per-node", "2", *LIGHT, script(tmp_path, HELLO), env=own.env)
    assert (code, how(job)) == (0, [["fork", "fork"]])
    assert second != pid


def test_a_stopped_one_holds_nobody_up_and_starts_nothing_twice(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state_of(pid) == "T", "it to be stopped")
    line = refused(tmp_path, own, *LIGHT, env={"ROBUST_WARM_DAEMON": ""})
    assert "it did not answer within 0.5 s because it is stopped" in line
    assert own.status()[0]["state"] == "stopped"
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: own.status()[0]["served"] == 0 and own.status()[0]["state"] == "idle", "it to find the job gone")
    assert not (tmp_path / "ran").exists()
    code, job = run(tmp_path, "--nproc-per-node", "2", *LIGHT, script(tmp_path, HELLO), env=own.env)
    assert (code, how(job)) == (0, [["fork", "fork"]])


def test_another_version(own: Warm, tmp_path: Path) -> None:
    pid = own.start(*LIGHT)
    (lock,) = own.folder.glob("*.lock")
    announcement = json.loads(lock.read_text())
    lock.write_text(json.dumps({**announcement, "version": "0.0.1"}))
    line = refused(tmp_path, own)
    assert f"the warm process (pid {pid}) was not used: it is of robust-run 0.0.1" in line
    (seen,) = own.status()
    assert (seen["state"], seen["version"]) == ("of another version", "0.0.1")
    assert own.start(*LIGHT) != pid, "it is replaced"
    wait_for(lambda: is_gone(pid), "its end")


def test_code_that_changed_since_it_was_imported(own: Warm, tmp_path: Path) -> None:
    module = tmp_path / "my_module.py"
    module.write_text("VALUE = 1\n")
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}
    arguments = ("--preload", "json,my_module")
    pid = own.start(*arguments, env=env)
    path = script(tmp_path, "import my_module, sys; sys.stdout.write(f'{my_module.VALUE}\\n')")
    code, job = run(tmp_path, "--nproc-per-node", "2", *arguments, path, env={**own.env, **env})
    assert (code, job.out, how(job)) == (0, "1\n1\n", [["fork", "fork"]])
    module.write_text("VALUE = 22\n")
    code, job = run(tmp_path, "--nproc-per-node", "2", *arguments, path, env={**own.env, **env})
    assert (code, job.out, how(job)) == (0, "22\n22\n", [["spawn", "spawn"]])
    assert "my_module.py has changed since it started" in job.err
    assert own.start(*arguments, env=env) != pid
    code, job = run(tmp_path, "--nproc-per-node", "2", *arguments, path, env={**own.env, **env})
    assert (code, job.out, how(job)) == (0, "22\n22\n", [["fork", "fork"]])
