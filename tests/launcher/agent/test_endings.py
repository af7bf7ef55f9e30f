"""However a job ends and whatever its workers do, no process of it is left. Real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import PATIENT, Job, kill, run, running, script, wait_for

from robust_run.launcher.start.child_end import wait_for_end
from robust_run.launcher.start.guard import Requests

#: What a worker may be doing when the end comes. Each makes `up-<rank>` when it has got there.
WORKERS = {
    "sleeps": "hang()",
    "made_children_in_other_sessions": """
        import subprocess
        for session in (False, True):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=session)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                hang()
            os._exit(0)
        hang()
    """,
    "is_stopped": """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        hang()
    """,
    "is_in_a_busy_loop": """
        os.nice(19)  # other tests need the CPUs
        up()
        while True:
            pass
    """,
    "ignores_sigterm_and_sigint": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hang()
    """,
}

PREAMBLE = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def up():
    open(f"up-{rank}", "w").close()
def hang():
    up()
    time.sleep(600)
if rank == 1 and %(stops)r:
    up()
"""


def worker(tmp_path: Path, kind: str) -> str:
    import textwrap

    text = PREAMBLE % {"stops": kind == "is_stopped"} + textwrap.dedent(WORKERS[kind])
    return script(tmp_path, text)


def wait_until_up(job: Job, tmp_path: Path, nproc: int = 2) -> None:
    for rank in range(nproc):
        job.wait_for_file(f"up-{rank}", tmp_path)


#: Each signal, and each kind of worker with the one that is passed to most jobs: which signal it is makes no difference to
#: how long workers are given, nor to how what is left of them is found.
SIGNALS = [
    *((signal.SIGTERM, kind) for kind in WORKERS),
    *((number, kind) for number in (signal.SIGINT, signal.SIGHUP) for kind in ("sleeps", "ignores_sigterm_and_sigint")),
]


@pytest.mark.parametrize(("number", "kind"), SIGNALS, ids=lambda each: getattr(each, "name", each))
def test_a_signal_to_the_launcher_ends_the_job(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    with running(tmp_path, "--nproc-per-node", "2", "--shutdown-timeout", "1", worker(tmp_path, kind)) as job:
        wait_until_up(job, tmp_path)
        job.signal(number)
        assert job.finish() == 128 + number
        job.assert_nothing_left()
    assert f"stopped by {number.name}" in job.err


SAVES_AT_THE_END = """
import os, signal, sys, time
import torch, torch.distributed as dist
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
dist.init_process_group("gloo")
open(f"up-{os.environ['RANK']}", "w").close()
while not told:
    time.sleep(0.01)
group = dist.new_group([0, 1])  # which asks the store
dist.all_reduce(torch.ones(1), group=group)
print("saved together", flush=True)
sys.exit(0)
"""


def test_workers_that_are_ended_with_all_processes_of_the_job_can_still_save_together(tmp_path: Path) -> None:
    """As Slurm does at `scancel`: one signal to every process of the step, in whatever order they get it."""
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, SAVES_AT_THE_END)) as job:
        wait_until_up(job, tmp_path)
        wait_for(lambda: job.events("standby_ready"), "a standby worker")
        everyone, launcher = [int(line.partition(":")[0]) for line in job.leftovers()], [job.agent_pid(), job.pid]
        assert {*job.pids(), *launcher, job.events("warm_ready")[0]["pid"]} < {*everyone}
        for pid in (*(pid for pid in everyone if pid not in launcher), *launcher):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert job.finish() == 128 + signal.SIGTERM
        job.assert_nothing_left()
    assert job.out.count("saved together") == 2
    assert "stopped by SIGTERM" in job.err
    assert "later attempts start from nothing" not in job.err


@pytest.mark.parametrize("kind", WORKERS)
def test_ctrl_c_twice_ends_the_job_at_once(tmp_path: Path, kind: str) -> None:
    with running(tmp_path, "--nproc-per-node", "2", "--shutdown-timeout", "600", worker(tmp_path, kind)) as job:
        wait_until_up(job, tmp_path)
        # A second Ctrl-C within a moment of the first is the same; somebody who means it presses on.
        wait_for(lambda: job.process.poll() is not None or press(job), "the end, at a Ctrl-C that was not the first")
        assert job.finish() == 130, job.err
        job.assert_nothing_left()


def press(job: Job) -> None:
    """Press Ctrl-C, and be a little impatient."""
    with contextlib.suppress(ProcessLookupError):
        job.signal(signal.SIGINT)
    time.sleep(0.1)


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("victim", ["the process the user started", "the agent", "both"])
def test_sigkill_of_the_launcher_leaves_nothing(tmp_path: Path, kind: str, victim: str) -> None:
    with running(tmp_path, "--nproc-per-node", "2", worker(tmp_path, kind)) as job:
        wait_until_up(job, tmp_path)
        agent, pids = job.agent_pid(), set(map(str, job.pids()))
        kill(*{"the agent": [agent], "the process the user started": [job.pid]}.get(victim, [job.pid, agent]))
        job.finish()
        if victim == "both":
            # Workers die with the agent; only what they had moved to sessions of its own can then be left.
            wait_for(lambda: not pids & {line.partition(":")[0] for line in job.leftovers()}, "workers to die")
            for folder in Path("/dev/shm").glob(f"robust-run-{job.run_id}-*"):
                shutil.rmtree(folder, ignore_errors=True)  # a job of another test may be removing it too
        else:
            job.assert_nothing_left()
    if victim == "the agent":
        assert "was killed by SIGKILL" in job.err


@pytest.mark.parametrize("kind", WORKERS)
def test_a_failing_rank_ends_the_others(tmp_path: Path, kind: str) -> None:
    failing = (
        "import time\n"
        + PREAMBLE % {"stops": kind == "is_stopped"}
        + ("\nif rank == 0:\n    while not os.path.exists('up-1'): time.sleep(0.01)\n    os._exit(7)\n")
    )
    import textwrap

    path = script(tmp_path, failing + textwrap.dedent(WORKERS[kind]))
    code, job = run(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", "--restart-grace", "0.5", path)
    assert code == 7
    assert "rank 0 exited with code 7" in job.err


def test_a_dead_ranks_children_are_ended_too(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        os._exit(3)
        """,
    )
    code, _ = run(tmp_path, "--max-restarts", "0", path)
    assert code == 3


@pytest.mark.parametrize("sessions", ["one session", "a new session each time"])
def test_a_process_that_forks_and_ends_over_and_over_is_caught(tmp_path: Path, sessions: str) -> None:
    path = script(
        tmp_path,
        f"""
        import os, time
        if os.fork() == 0:
            give_up_at = time.monotonic() + 120  # if the test is killed, nothing else would ever catch it
            while time.monotonic() < give_up_at:
                if os.fork():
                    os._exit(0)
                if {sessions == "a new session each time"!r}:
                    os.setsid()
                    time.sleep(0.005)
            os._exit(0)
        time.sleep(0.2)
        os._exit(3)
        """,
    )
    code, job = run(tmp_path, "--max-restarts", "0", path)
    assert code == 3
    assert not any(job.leftovers() for _ in range(30)), "one look may miss it"


def test_children_left_behind_by_a_job_that_ended_well_may_finish_within_the_grace(tmp_path: Path) -> None:
    """They get SIGTERM, like any process at the end of a session, and the job's success is not theirs to spoil."""
    child = script(
        tmp_path,
        """
        import signal, sys, time
        def save(*_):
            open("saved", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
        """,
        "child.py",
    )
    path = script(
        tmp_path,
        f"""
        import subprocess, sys
        process = subprocess.Popen([sys.executable, {child!r}], start_new_session=True, stdout=subprocess.PIPE)
        process.stdout.readline()
        """,
    )
    code, _ = run(tmp_path, "--restart-grace", "60", path)
    assert code == 0
    assert (tmp_path / "saved").exists()


def test_a_signal_for_the_workers_reaches_those_that_handle_it(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, signal, time
        rank = os.environ["RANK"]
        done = []
        signal.signal(signal.SIGUSR1, lambda *_: done.append(1))
        open(f"up-{rank}", "w").close()
        while not done:
            time.sleep(0.01)
        print("rank", rank, "was told")
        """,
    )
    with running(tmp_path, "--nproc-per-node", "2", path) as job:
        wait_until_up(job, tmp_path)
        job.signal(signal.SIGUSR1)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert "rank 0 was told" in job.out
    assert "rank 1 was told" in job.out


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_a_signal_nobody_handles_kills_neither_launcher_nor_workers(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "--nproc-per-node", "2", worker(tmp_path, "sleeps")) as job:
        wait_until_up(job, tmp_path)
        job.signal(number)
        wait_for(lambda: job.events("signal_passed_on"), "the signal to arrive")
        assert job.events("signal_passed_on")[0]["ranks"] == []
        assert job.events("rank_exited") == []
        job.signal(signal.SIGTERM)
        assert job.finish() == 143
    assert f"{number.name} was not passed to rank 0, 1" in job.err


def test_a_handler_below_a_shell_script_is_found(tmp_path: Path) -> None:
    python = script(
        tmp_path,
        """
        import os, signal, time
        done = []
        signal.signal(signal.SIGUSR2, lambda *_: done.append(1))
        open(f"up-{os.environ['RANK']}", "w").close()
        while not done:
            time.sleep(0.01)
        """,
    )
    import sys

    shell = tmp_path / "run.sh"
    shell.write_text(f"#!/bin/sh\n{sys.executable} {python}\nexit $?\n")
    shell.chmod(0o755)
    with running(tmp_path, "--no-python", str(shell)) as job:
        wait_until_up(job, tmp_path, nproc=1)
        job.signal(signal.SIGUSR2)
        assert job.finish() == 0


def test_a_signal_listed_as_ending_ends_the_job_as_under_torchrun(tmp_path: Path) -> None:
    arguments = ("--signals-to-handle", "SIGTERM,SIGUSR1", "--shutdown-timeout", "1")
    with running(tmp_path, *arguments, worker(tmp_path, "sleeps")) as job:
        wait_until_up(job, tmp_path, nproc=1)
        job.signal(signal.SIGUSR1)
        assert job.finish() == 128 + signal.SIGUSR1
        job.assert_nothing_left()


SAVES_FOR_A_SECOND = """
import signal, sys, time
def save(*_):
    time.sleep(1.0)
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("up-0", "w").close()
time.sleep(600)
"""


def test_a_graceful_shutdown_gets_its_time(tmp_path: Path) -> None:
    path = script(tmp_path, SAVES_FOR_A_SECOND)
    with running(tmp_path, path) as job:
        wait_until_up(job, tmp_path, nproc=1)
        job.signal(signal.SIGTERM)
        assert job.finish() == 143
    assert (tmp_path / "saved").exists()


def test_a_signal_sent_twice_in_one_breath_is_one(tmp_path: Path) -> None:
    """`timeout` sends SIGTERM to the process and then to its group; the save that takes a second must not be cut off."""
    path = script(tmp_path, SAVES_FOR_A_SECOND)
    with running(tmp_path, path) as job:
        wait_until_up(job, tmp_path, nproc=1)
        os.kill(job.agent_pid(), signal.SIGSTOP)  # it finds both at once, however late the second is sent here
        for _ in range(2):
            job.signal(signal.SIGTERM)
            wait_for(lambda: has_passed_on(job.pid), "the process the user started to pass it on")
        os.kill(job.agent_pid(), signal.SIGCONT)
        assert job.finish() == 143
    assert (tmp_path / "saved").exists()


def has_passed_on(pid: int) -> bool:
    """Whether a process has dealt with all signals and waits for what comes next."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return status["State"].startswith("S") and not int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)


@pytest.mark.parametrize(
    ("asked_at_s", "is_killed"),
    [
        ([0.0, 0.1, 0.2, 9.0], False),  # the first three are one
        ([0.0, 0.4, 0.8, 1.2, 5.3], False),  # pressed five times, but an agent on a busy machine is still at it
        ([0.0, 0.4, 5.5], True),
        ([0.0, 0.4, 0.8, 1.2, 5.5], True),
        ([0.0, 60.0, 64.0], False),
        ([0.0, 60.0, 66.0], True),
    ],
)
def test_an_agent_has_its_time_to_end_however_often_it_is_asked(asked_at_s: list[float], is_killed: bool) -> None:
    requests = Requests()
    assert [requests.is_out_of_patience(at_s) for at_s in asked_at_s] == [False] * (len(asked_at_s) - 1) + [is_killed]


def test_an_agent_that_answers_nothing_is_killed_when_asked_again_and_again(tmp_path: Path) -> None:
    with running(tmp_path, "--nproc-per-node", "2", worker(tmp_path, "sleeps")) as job:
        wait_until_up(job, tmp_path)
        os.kill(job.agent_pid(), signal.SIGSTOP)
        wait_for(lambda: job.process.poll() is not None or press(job), "the end")
        assert job.finish() == 130, "as if it had answered: 137 is what a job has that ran out of memory"
        job.assert_nothing_left()
    assert f"the agent (pid {job.journal()[0]['pid']}) did not answer SIGINT within 5 s and was killed" in job.err


@pytest.mark.parametrize("moment", range(0, 12, 2))
def test_a_signal_at_the_very_start_ends_the_job_and_leaves_nothing(tmp_path: Path, moment: int) -> None:
    """From the moment the run directory exists, a SIGTERM is the job's, wherever the launcher is by then."""
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, "import time; time.sleep(600)")) as job:
        wait_for(job.run_dir.exists, "the run directory")
        deadline = time.monotonic() + moment / 1000
        while time.monotonic() < deadline:
            pass
        job.signal(signal.SIGTERM)
        assert job.finish() == 143
        job.assert_nothing_left()


def test_shared_memory_of_killed_workers_is_freed_by_those_who_watch_over_it(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, signal, time
        from multiprocessing.shared_memory import SharedMemory
        from multiprocessing import resource_tracker
        memory = SharedMemory(create=True, size=1 << 20)
        tracker = f"/proc/{resource_tracker._resource_tracker._pid}/status"
        while not int(open(tracker).read().split("SigIgn:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
            time.sleep(0.01)  # it is still starting
        name = f"name-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
        open(f"{name}.part", "w").write(memory.name)
        os.rename(f"{name}.part", name)
        if os.environ["RANK"] == "1":
            while not os.path.exists(f"name-{os.environ['TORCHELASTIC_RESTART_COUNT']}-0"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        """,
    )
    run(tmp_path, "--nproc-per-node", "2", "--max-restarts", "2", "--restart-grace", "60", path, prefix=PATIENT)
    names = [file.read_text() for file in tmp_path.glob("name-*")]
    assert len(names) == 6
    assert [name for name in names if os.path.exists(f"/dev/shm/{name}")] == []


def test_a_parent_that_ignores_sigchld_changes_nothing(tmp_path: Path) -> None:
    ignores = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    path = script(tmp_path, "import os; os._exit(7)")
    with running(tmp_path, "--max-restarts", "0", path, prefix=(sys.executable, "-c", ignores)) as job:
        assert job.finish() == 7
    assert "FAILED" in job.err


def test_nohup_is_respected(tmp_path: Path) -> None:
    with running(tmp_path, worker(tmp_path, "sleeps"), prefix=("nohup",)) as job:
        wait_until_up(job, tmp_path, nproc=1)
        job.signal(signal.SIGHUP)
        job.signal(signal.SIGUSR1)
        wait_for(lambda: job.events("signal_passed_on"), "the later signal to arrive")
        assert job.events("signal_received") == []
        job.signal(signal.SIGTERM)
        assert job.finish() == 143


#: Its first thread ends, with an exit code; another one goes on, as one does that a file system holds fast.
_HALF_ENDED = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 7)
"""


def test_an_agent_one_of_whose_threads_cannot_end_is_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    """A SIGKILL does not end such a thread while its file system hangs, and until it does nobody gets the exit code."""
    with subprocess.Popen([sys.executable, "-c", _HALF_ENDED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        try:
            assert os.waitstatus_to_exitcode(wait_for_end(process.pid)) == 7
        finally:
            process.kill()
    assert (
        f"the agent (pid {process.pid}) has ended, but for a thread that waits for a file system"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_that_ends_is_seen_at_once_and_said_nothing_of(capfd: pytest.CaptureFixture[str], code: int) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(code)
    assert os.waitstatus_to_exitcode(wait_for_end(pid)) == code
    assert capfd.readouterr().err == ""
