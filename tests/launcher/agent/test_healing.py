"""A job that loses workers goes on, correctly, and every time. Real workers, real gloo, real kills."""

from __future__ import annotations

import json
import os
import signal
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import ALL_REDUCE, PATIENT, Job, run, running, script, unused_port, wait_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_gpt.py"


def test_twenty_of_twenty_restarts_succeed(tmp_path: Path) -> None:
    """Of two ranks: a hundred, in `launcher/warm/test_warm_jobs.py`."""
    restarts, nproc = 20, 4
    path = script(tmp_path, ALL_REDUCE % {"restarts": restarts})
    with running(tmp_path, "--nproc-per-node", str(nproc), "--max-restarts", "100", path) as job:
        for attempt in range(restarts):
            for rank in range(nproc):
                job.wait_for_file(f"reduced-{attempt}-{rank}", tmp_path)
            os.kill(job.pids(attempt)[attempt % nproc], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    verdicts = [action["verdict"]["ranks"] for action in job.actions("record_incident")]
    assert verdicts == [[attempt % nproc] for attempt in range(restarts)], (
        "every kill was needed, seen and blamed rightly"
    )
    ports = [event["port"] for event in job.events("attempt_started")]
    assert len(ports) == restarts + 1
    assert all(before != after for before, after in pairwise(ports)), (
        "a new store for every attempt, beside the last one"
    )


#: The example, which in its first attempts stays where it has written a certain checkpoint, so that the kill finds it there.
HELD = f"""
import os, sys, time
sys.path.insert(0, {str(EXAMPLE.parent)!r})
sys.dont_write_bytecode = True
import train_gpt
attempt, save = os.environ["TORCHELASTIC_RESTART_COUNT"], train_gpt.save_checkpoint
def save_and_stay(out, step, content):
    save(out, step, content)
    if {{"0": 4, "1": 12, "2": 16}}.get(attempt) == step:
        time.sleep(600)
train_gpt.save_checkpoint = save_and_stay
train_gpt.main()
"""


def train(tmp_path: Path, out: str, *more: str, program: str = str(EXAMPLE)) -> tuple[str, ...]:
    size = "--steps 24 --checkpoint-every 4 --width 32 --layers 1 --heads 2 --block 32 --batch 4 --log-every 8".split()
    return ("--nproc-per-node", "2", *more, program, "--out", str(tmp_path / out), *size)


def test_a_job_with_kills_ends_with_the_same_weights_as_an_undisturbed_one_bit_for_bit(tmp_path: Path) -> None:
    code, _ = run(tmp_path, *train(tmp_path, "calm", "--max-restarts", "0"))
    assert code == 0
    faults = [(1, 4), (0, 12), (1, 16)]  # (rank, after the checkpoint of this step)
    held = script(tmp_path, HELD)
    options = ("--max-restarts", "10", "--hang-after", "600")  # a rank that is held hangs
    with running(tmp_path, *train(tmp_path, "stormy", *options, program=held)) as job:
        for attempt, (rank, step) in enumerate(faults):
            pid = job.pids(attempt)[rank]
            wait_for(lambda: list((tmp_path / "stormy").glob(f"step-{step:08d}-*.pt")), f"step {step}")  # noqa: B023
            if attempt == 0:  # else its import of torch is for nothing, and the next attempt does it again
                wait_for(lambda: len(job.after("warm_ready", 2, "standby_ready")) >= 2, "standby workers")
            os.kill(pid, signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    blamed = [tuple(action["verdict"]["ranks"]) for action in job.actions("record_incident")]
    assert blamed == [(1,), (0,), (1,)]
    calm, stormy = (json.loads((tmp_path / name / "final.json").read_text()) for name in ("calm", "stormy"))
    assert calm["weights_sha256"] == stormy["weights_sha256"]


def test_a_survivor_that_ignores_sigterm_delays_a_restart_by_the_grace_and_no_more(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, signal, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(f"up-{os.environ['RANK']}", "w").close()
        time.sleep(600)
        """,
    )
    with running(tmp_path, "--nproc-per-node", "2", "--restart-grace", "1", path) as job:
        job.wait_for_file("up-0", tmp_path)
        job.wait_for_file("up-1", tmp_path)
        os.kill(job.pids()[0], signal.SIGKILL)
        assert job.finish() == 0
    lines = job.journal()
    died = next(line["mono"] for line in lines if line.get("event", {}).get("type") == "rank_exited")
    ended = next(line["mono"] for line in lines if line.get("action", {}).get("type") == "end_attempt")
    order = next(line["action"] for line in lines if line.get("action", {}).get("type") == "end_attempt")
    gone = next(line["mono"] for line in lines if line.get("event", {}).get("type") == "attempt_ended")
    assert (order["signal"], order["grace_s"], order["leftovers_s"]) == (signal.SIGTERM, 1.0, 0.0)
    assert ended == died, "its peers are told at once"
    assert gone - ended >= 1.0
    assert "rank 1 did not end within 1 s of SIGTERM" in job.err


def test_an_exception_that_repeats_itself_stops_the_job_with_its_traceback(tmp_path: Path) -> None:
    path = script(tmp_path, "def train():\n    raise ValueError('the learning rate is negative')\ntrain()\n")
    code, job = run(tmp_path, "--nproc-per-node", "2", path)
    assert code == 1
    assert len(job.events("attempt_started")) == 2
    summary = job.err[job.err.index("FAILED after 2 attempts") :]
    assert "raised ValueError: the learning rate is negative" in summary
    assert "Traceback (most recent call last)" in summary
    assert "train.py" in summary
    assert "the same exception came back" in summary
    assert "attempt_1/" in summary


def test_a_mistake_that_cannot_heal_is_not_tried_again(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--nproc-per-node", "2", script(tmp_path, "import no_such_package_at_all\n"))
    assert code == 1
    assert len(job.events("attempt_started")) == 1
    assert "ModuleNotFoundError" in job.err


@pytest.mark.parametrize(("limit", "attempts"), [("0", 1), ("2", 3)])
def test_crashes_without_progress_are_limited(tmp_path: Path, limit: str, attempts: int) -> None:
    code, job = run(tmp_path, "--max-restarts", limit, script(tmp_path, "import os; os._exit(7)"))
    assert code == 7
    assert len(job.events("attempt_started")) == attempts


def test_training_steps_are_progress(tmp_path: Path) -> None:
    """Each attempt gets one step further before it dies: with one fruitless restart allowed, it still gets there."""
    path = script(
        tmp_path,
        """
        import os, torch
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(attempt + 1):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
        if attempt < 2:
            os._exit(9)
        """,
    )
    code, job = run(tmp_path, "--max-restarts", "1", path)
    assert code == 0
    assert [event["progress"]["steps"] for event in job.events("attempt_ended")] == [1, 2, 3]


def test_growing_checkpoints_are_progress(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        os.makedirs("checkpoints", exist_ok=True)
        open(f"checkpoints/{attempt}.pt", "w").write("weights")
        os._exit(9 if attempt < 3 else 0)
        """,
    )
    code, _ = run(tmp_path, "--max-restarts", "1", "--progress-path", "checkpoints", path)
    assert code == 0


def test_surviving_for_a_while_is_progress(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, time
        time.sleep(0.3)
        os._exit(9 if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 3 else 0)
        """,
    )
    code, _ = run(tmp_path, "--max-restarts", "1", "--progress-after", "0.2", path)
    assert code == 0


BLAME = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(1000):
        if rank == 1 and step == 3:
            raise ValueError("a bad batch")
        dist.all_reduce(torch.ones(1))
finally:
    if %(destroys)r:
        dist.destroy_process_group()
"""

#: Before a job's command: who says why may be a minute later than those who lose a connection, as on a busy machine.
LISTENING = (
    *PATIENT[:2],
    "import msgspec; from robust_run.launcher.core import state; made = state.policy_of; "
    f"state.policy_of = lambda spec: msgspec.structs.replace(made(spec), patience_s=60.0); {PATIENT[2]}",
)


@pytest.mark.parametrize(
    "destroys", [False, True], ids=["connections break at exit", "connections break before the traceback"]
)
def test_broken_connections_are_not_blamed_while_somebody_says_why(tmp_path: Path, destroys: bool) -> None:
    path = script(tmp_path, BLAME % {"destroys": destroys})
    code, job = run(tmp_path, "--nproc-per-node", "3", "--max-restarts", "0", path, prefix=LISTENING)
    # After its traceback a rank's gloo threads may still abort its interpreter's end: that is the worker's exit code too.
    assert code in (1, 128 + signal.SIGABRT)
    (incident,) = job.actions("record_incident")
    assert incident["verdict"]["ranks"] == [1]
    assert "ValueError: a bad batch" in incident["verdict"]["sentence"]


HANDLED = """
import os, signal, sys, time, traceback
try:
    import no_such_package_for_speed
except ImportError:
    traceback.print_exc()
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"up-{attempt}-{rank}", "w").close()
while not all(os.path.exists(f"up-{attempt}-{other}") for other in "01"):
    time.sleep(0.01)
if attempt in "01" and rank == "1":
    os.kill(os.getpid(), signal.%(signal)s)
if attempt in "01":
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_traceback_that_the_program_has_dealt_with_is_not_the_cause(tmp_path: Path, name: str) -> None:
    options = ("--nproc-per-node", "2", "--diagnose", "never")
    code, job = run(tmp_path, *options, script(tmp_path, HANDLED % {"signal": name}))
    assert code == 0
    incidents = job.actions("record_incident")
    assert [incident["verdict"]["ranks"] for incident in incidents] == [[1], [1]]
    assert all(name in incident["verdict"]["sentence"] for incident in incidents)


TWO_ERRORS = """
import atexit, os, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def until(path):
    while not os.path.exists(path): time.sleep(0.01)
if rank == 0:
    atexit.register(time.sleep, 60)
    atexit.register(lambda: open("raised", "w").close())
    raise ValueError("the first")
if rank == 1:
    until("raised")
    raise KeyError("the second")
time.sleep(600)
"""


def test_who_raised_first_is_named_however_long_its_interpreter_takes_to_end(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "3", "--max-restarts", "0", "--diagnose", "never")
    code, job = run(tmp_path, *options, script(tmp_path, TWO_ERRORS))
    assert code == 1, job.err
    (incident,) = job.actions("record_incident")
    assert incident["verdict"]["ranks"] == [0]
    assert "rank 0 raised ValueError: the first" in incident["verdict"]["sentence"]
    assert "1 other rank failed after it" in incident["verdict"]["aftermath"]


def test_passing_trouble_of_the_world_uses_up_the_restarts_before_it_ends_the_job(tmp_path: Path) -> None:
    text = (
        "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] != '3': raise OSError(110, 'the file server is away')\n"
    )
    code, job = run(tmp_path, script(tmp_path, text))
    assert code == 0
    assert len(job.events("attempt_started")) == 4


def test_the_launchers_own_files_are_no_progress(tmp_path: Path) -> None:
    arguments = ("--max-restarts", "2", "--progress-path", str(tmp_path / "runs"))
    code, job = run(tmp_path, *arguments, script(tmp_path, "import os; os._exit(9)"))
    assert code == 9
    assert len(job.events("attempt_started")) == 3


def test_two_jobs_that_ask_for_the_same_port_both_run(tmp_path: Path) -> None:
    path = script(tmp_path, ALL_REDUCE % {"restarts": 0} + "open(f'done-{rank}', 'w').close()\n")
    port = unused_port()
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    arguments = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), path)
    with (
        running(folders[0], *arguments, cwd=folders[0]) as first,
        running(folders[1], *arguments, cwd=folders[1]) as second,
    ):
        assert (first.finish(), second.finish()) == (0, 0)
    ports = [job.events("attempt_started")[0]["port"] for job in (first, second)]
    assert port in ports
    assert ports[0] != ports[1]
    assert "cannot listen" in first.err + second.err


def test_a_port_stolen_between_attempts_is_survived(tmp_path: Path) -> None:
    """The thief takes it the moment the first attempt's store has let go of it."""
    path = script(
        tmp_path,
        """
        import os, socket, sys, time
        attempt, port = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["MASTER_PORT"])
        if attempt == 0:
            open("up", "w").close()
            time.sleep(600)
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        """,
    )
    port = unused_port()
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with running(tmp_path, "--nproc-per-node", "2", "--master-port", str(port), path) as job, thief:
        job.wait_for_file("up", tmp_path)
        store = store_pid(job)
        os.kill(job.agent_pid(), signal.SIGSTOP)  # else it might be the quicker one
        os.kill(store, signal.SIGKILL)
        wait_for(lambda: _bind(thief, port), "the port to be free for the thief")
        os.kill(job.agent_pid(), signal.SIGCONT)
        assert job.finish() == 0
        job.assert_nothing_left()
    first, second = (event["port"] for event in job.events("attempt_started"))
    assert first == port
    assert second != port


def _bind(sock: socket.socket, port: int) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError:
        return False
    return True


def store_pid(job: Job) -> int:
    """Return the pid of the job's store process."""

    def found() -> int | None:
        for line in job.leftovers():
            if "store_process" in line or line.rstrip().endswith("robust-run: store"):
                return int(line.partition(":")[0])
        return None

    return wait_for(found, "the store's process")


def test_the_stores_death_is_survived(tmp_path: Path) -> None:
    path = script(tmp_path, ALL_REDUCE % {"restarts": 1})
    with running(tmp_path, "--nproc-per-node", "2", path) as job:
        job.wait_for_file("reduced-0-0", tmp_path)
        job.wait_for_file("reduced-0-1", tmp_path)
        os.kill(store_pid(job), signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    (incident,) = job.actions("record_incident")
    assert "store" in incident["verdict"]["sentence"]
    assert incident["verdict"]["ranks"] == []
