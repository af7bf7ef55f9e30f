"""Jobs of one node whose health is watched: real sensors, a real kernel, real kills for memory, a stub of NVIDIA's driver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, run, running, script, wait_for
from sensor_ground import StubDriver, compile_stub

#: Works until a file says that it is done.
WORKS = """
import os, time
while not os.path.exists("done"):
    time.sleep(0.02)
"""


def done(tmp_path: Path) -> None:
    (tmp_path / "done").touch()


def heard(job: Job, name: str, kind: str = "alert") -> list[dict[str, Any]]:
    """Return what sensors said under this name so far."""
    signs = [event["event"] for event in job.events("health_seen")]
    return [sign for sign in signs if (sign["name"], sign["kind"]) == (name, kind)]


def incidents(job: Job) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text()) for path in sorted((job.run_dir / "incidents").glob("[0-9][0-9][0-9][0-9].json"))
    ]


def sensor_pids(job: Job) -> list[int]:
    """Return the pids of the job's sensors that live."""
    lines = [line for line in job.leftovers() if "sensors.process" in line]
    return [int(line.partition(":")[0]) for line in lines]


def wait_for_sensors(job: Job) -> int:
    """Return the pid of the sensors' process, once it watches."""
    wait_for(lambda: job.events("sensors_began"), "the sensors to watch")
    (pid,) = sensor_pids(job)
    return pid


def test_each_agent_has_one_process_of_sensors_which_says_once_what_is_absent_and_ends_with_the_job(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--nproc-per-node", "2", script(tmp_path, WORKS)) as job:
        wait_for_sensors(job)
        (began,) = job.events("sensors_began")
        if not Path("/dev/nvidiactl").exists():
            assert any(line.startswith("gpu.absent") for line in began["absent"])
        done(tmp_path)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert "absent" not in job.err, "it is no news for a terminal"


def test_without_sensors_there_is_no_such_process(tmp_path: Path) -> None:
    text = "import os; print(repr(os.environ.get('ROBUST_REPORT')))\n" + WORKS
    with running(tmp_path, "--no-sensors", script(tmp_path, text)) as job:
        job.pids()
        wait_for(lambda: job.events("warm_ready"), "the job to have got going")
        assert not sensor_pids(job)
        done(tmp_path)
        assert job.finish() == 0
    assert job.out == "''\n"
    assert not job.events("sensors_began")


def test_sensors_end_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, script(tmp_path, WORKS)) as job:
        pid = wait_for_sensors(job)
        os.kill(job.agent_pid(), signal.SIGKILL)
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the sensors to end")
        job.finish()
        job.assert_nothing_left()


def test_sensors_that_are_killed_are_started_again_and_training_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, script(tmp_path, WORKS)) as job:
        pid = wait_for_sensors(job)
        os.kill(pid, signal.SIGKILL)
        (note,) = wait_for(lambda: heard(job, "sensors.ended", "note"), "its end to be noted")
        assert "started again" in note["detail"]
        (again,) = wait_for(lambda: sensor_pids(job), "the sensors to be started again")
        assert again != pid
        done(tmp_path)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert job.err.count("the sensors' process ended") == 1
    assert len(job.events("attempt_started")) == 1


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup for memory with a limit; what is in it at the end is killed."""
    home = Path("/sys/fs/cgroup")
    name = f"robust-run-test-{os.getpid()}"
    unified = (home / "cgroup.controllers").exists() and "memory" in (home / "cgroup.controllers").read_text()
    folder = home / name if unified else home / "memory" / name
    try:
        if unified and "memory" not in (home / "cgroup.subtree_control").read_text():
            (home / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(400 << 20))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup with a limit can be made: {error}")
    yield folder

    def is_removed() -> bool:
        for pid in (folder / "cgroup.procs").read_text().split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            folder.rmdir()
        except OSError:
            return False
        return True

    wait_for(is_removed, "the cgroup to be empty")


#: In attempt 0 it takes more memory than there is, when told to.
GREEDY = """
import os, time
kept = []
while not os.path.exists("done"):
    time.sleep(0.02)
    while os.path.exists("eat") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        kept.append(bytearray(b"x" * (8 << 20)))
"""


@pytest.mark.parametrize("kernel_log", [True, False], ids=["with the kernel's log", "by the cgroup's counter"])
def test_a_worker_that_the_kernel_kills_for_memory_is_said_to_be_out_of_memory(
    tmp_path: Path, small_cgroup: Path, kernel_log: bool
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f"[sensors.kernel_log]\non = {'true' if kernel_log else 'false'}\n")
    enter = ("sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs; exec "$@"', "sh")
    options = ("--no-warm", "--health-rules", str(rules))
    with running(tmp_path, *options, script(tmp_path, GREEDY), prefix=enter) as job:
        wait_for_sensors(job)
        (tmp_path / "eat").touch()
        incident = wait_for(lambda: incidents(job), "an incident")[0]
        done(tmp_path)
        assert job.finish() == 0
        job.assert_nothing_left()
    verdict = incident["verdict"]
    assert (verdict["kind"], verdict["rule"], verdict["ranks"]) == ("crash", "out_of_memory", [0])
    assert verdict["sentence"].count("memory ran out") == 1
    assert "memory.oom_kill" not in verdict["sentence"], "it says so already"
    assert incident["action"]["name"] == "relaunch"
    assert [rule["rule"] for rule in job.actions("rule_spoke") if rule["rule"].startswith("worker.")] == [
        "worker.host_memory"
    ]


def kill_another(folder: Path) -> None:
    """Have the kernel kill a process for memory that is not the job's, in a cgroup that is not the job's."""
    text = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\nkept = []\n"
    text += "while True: kept.append(bytearray(b'x' * (8 << 20)))"
    assert subprocess.run([sys.executable, "-c", text], timeout=60, check=False).returncode == -signal.SIGKILL


def test_a_kill_for_memory_of_another_job_s_process_stands_in_no_verdict(tmp_path: Path, small_cgroup: Path) -> None:
    with running(tmp_path, script(tmp_path, WORKS)) as job:
        wait_for_sensors(job)
        kill_another(small_cgroup)
        if os.access("/dev/kmsg", os.R_OK):
            wait_for(lambda: heard(job, "memory.oom_kill", "note"), "the kernel's log to tell of it")
        wait_for(lambda: heard(job, "memory.oom_kill_on_node"), "the node's counter to tell of it")
        os.kill(job.pids()[0], signal.SIGKILL)
        incident = wait_for(lambda: incidents(job), "an incident")[0]
        done(tmp_path)
        assert job.finish() == 0
    assert not heard(job, "memory.oom_kill")
    assert incident["verdict"]["rule"] == "died_of_signal"
    assert "memory" not in incident["verdict"]["sentence"]
    assert not [each for each in incident["evidence"] if "memory" in each["text"] or "pressure" in each["text"]]


def test_a_worker_that_somebody_kills_is_not_said_to_be_out_of_memory(tmp_path: Path) -> None:
    with running(tmp_path, script(tmp_path, WORKS)) as job:
        wait_for_sensors(job)
        os.kill(job.pids()[0], signal.SIGKILL)
        incident = wait_for(lambda: incidents(job), "an incident")[0]
        done(tmp_path)
        assert job.finish() == 0
    assert incident["verdict"]["rule"] == "died_of_signal"


# --- training -------------------------------------------------------------------------------------------------------

#: Its numbers go wrong a while after it is told so: the sensors are to see what they were before.
DIVERGES = """
import math, os, time
import robust_run
step, told = 0, None
while not os.path.exists("done"):
    if told is None and os.path.exists("diverge"):
        told = step
    is_wrong = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and told is not None and step > told + 150
    robust_run.report(step=step, loss=%s if is_wrong else 1.0)
    step += 1
    time.sleep(0.03)
"""


def diverge(job: Job, folder: Path) -> None:
    wait_for_sensors(job)
    (folder / "diverge").touch()


def test_a_loss_that_is_nan_ends_the_attempt_and_the_verdict_says_so(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--diagnose", "never")
    with running(tmp_path, *options, script(tmp_path, DIVERGES % "math.nan")) as job:
        diverge(job, tmp_path)
        incident = wait_for(lambda: incidents(job), "an incident")[0]
        job.pids(attempt=1)
        done(tmp_path)
        assert job.finish() == 0
        job.assert_nothing_left()
    verdict = incident["verdict"]
    assert (verdict["kind"], verdict["rule"], incident["action"]["name"]) == ("nan", "training.nan", "relaunch")
    assert "loss is nan at step " in verdict["sentence"]


#: The same, told in an event file as TensorBoard writes it, which is damaged before that.
LOGS = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from event_files import record, scalar
step, told = 0, None
file = open("logs/events.out.tfevents.1", "ab", buffering=0)
while not os.path.exists("done"):
    if told is None and os.path.exists("diverge"):
        told = step
        file.write(bytes(99))
    loss = 50.0 if told is not None and step > told + 150 else 1.0
    file.write(record(scalar("train/loss", step, loss, at_s=time.time())))
    step += 1
    time.sleep(0.03)
"""


def test_a_jump_of_the_loss_in_an_event_file_is_reported_and_shown_while_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.out.tfevents.1").touch()
    with running(tmp_path, "--metrics-from", str(tmp_path / "logs"), script(tmp_path, LOGS)) as job:
        diverge(job, tmp_path)
        incident = wait_for(lambda: incidents(job), "an incident")[0]
        argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "status", str(job.run_dir)]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        done(tmp_path)
        assert job.finish() == 0
    assert (incident["verdict"]["rule"], incident["action"]["name"]) == ("training.jump", "report")
    assert "events.out.tfevents.1: train/loss is 50, 50.0 times" in shown.stdout, shown.stderr
    assert len(job.events("attempt_started")) == 1
    assert job.err.count("metrics from events.out.tfevents.1: it is damaged at byte ") == 1


def test_a_script_may_be_kept_from_reporting(tmp_path: Path) -> None:
    text = """
    import os, math, robust_run
    robust_run.report(step=1, loss=math.nan)
    print(os.environ["ROBUST_REPORT"])
    """
    code, job = run(tmp_path, script(tmp_path, text), env={"ROBUST_REPORT": "off"})
    assert (code, job.out) == (0, "off\n")


# --- devices --------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path) -> StubDriver:
    """A driver of two healthy GPUs."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of libnvidia-ml")
    (tmp_path / "driver").mkdir()
    stub = StubDriver(compile_stub(compiler, tmp_path / "driver"), tmp_path / "gpus")
    stub.set(count=2, celsius_0=60, celsius_1=61)
    return stub


def test_a_lost_gpu_of_the_only_node_is_reported_and_stands_beside_the_crash_that_follows(
    tmp_path: Path, driver: StubDriver
) -> None:
    text = """
    import os, time
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    while not os.path.exists("done"):
        time.sleep(0.02)
        if first and os.path.exists("crash"):
            os.abort()
    """
    env = {"ROBUST_NVML": driver.library, "STUB_NVML_STATE": str(tmp_path / "gpus")}
    with running(tmp_path, "--trace-nccl", "off", script(tmp_path, text), env=env) as job:
        wait_for_sensors(job)
        driver.set(lost_1=1)
        reported = wait_for(lambda: incidents(job), "an incident")[0]
        (tmp_path / "crash").touch()
        crash = wait_for(lambda: incidents(job)[1:], "a second incident")[0]
        done(tmp_path)
        assert job.finish() == 0
    assert (reported["verdict"]["rule"], reported["action"]["name"]) == ("gpu.lost", "report")
    assert "the job has no other node" in reported["action"]["reason"]
    assert crash["verdict"]["kind"] == "crash"
    assert "gpu.lost" in crash["verdict"]["sentence"], "shortly before it"


@pytest.mark.parametrize(
    ("options", "text", "named"),
    [
        (("--health-rules", "rules.toml"), '[rules."gpu.lots"]\nrung = "report"\n', "gpu.lost"),
        (("--health-rules", "nowhere.toml"), "", "nowhere.toml"),
        (("--max-evict-share", "1.5"), "", "1.5"),
        (("--metrics-from", "rules.toml"), "", "--metrics-from"),
    ],
)
def test_mistakes_are_said_in_one_line_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], text: str, named: str
) -> None:
    (tmp_path / "rules.toml").write_text(text)
    code, job = run(tmp_path, *options, script(tmp_path, WORKS))
    assert code == 2
    assert job.err.count("\n") == 1, job.err
    assert named in job.err
    assert not job.run_dir.exists()
