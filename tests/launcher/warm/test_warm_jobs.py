"""Jobs whose later attempts start from pre-imported processes. Real jobs, real kills."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jobs
import pytest
from fake_torch import FAKE_TORCH
from jobs import ALL_REDUCE, PATIENT, Job, run, script, wait_for

from robust_run.launcher.start.options.option_types import Options

#: Jobs in which a fork is waited for, however busy the machine is.
running = partial(jobs.running, prefix=PATIENT)
#: The same, in which time alone is no reason to fill the stock again.
UNSTOCKED = (*PATIENT[:2], f"from robust_run.launcher.agent import node; node.RESTOCK_AFTER_S = 1e9; {PATIENT[2]}")


#: Before a job's command: signals that a shell, `nohup` or a scheduler may have ignored before it starts something.
IGNORING = (
    sys.executable,
    "-c",
    "import os, signal as s, sys; [s.signal(n, s.SIG_IGN) for n in (s.SIGHUP, s.SIGINT, s.SIGQUIT, s.SIGUSR1, s.SIGALRM)]; "
    "os.execv(sys.argv[1], sys.argv[1:])",
)


#: Options of jobs in which it does not matter what their warm process imports: torch takes seconds.
LIGHT = ("--preload", "json")

#: A program for them that lives on until its attempt is number `restarts`, and notes when its ranks are there.
WAITS = """
import os, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"up-{attempt}-{os.environ['RANK']}", "w").close()
while int(attempt) < %(restarts)d:
    time.sleep(0.01)
"""

#: ALL_REDUCE, which in its first attempt only waits for the kill: from then on the warm process has imported torch for it.
THEN_REDUCES = f"""
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(f"up-0-{{os.environ['RANK']}}", "w").close()
    time.sleep(600)
{ALL_REDUCE}
"""

#: A torch for tests of what is imported late, where it imports `torch._dynamo` as torch does. It has what the warm process and
#: what is forked from it call, and for the process that hosts the store a class that does nothing.
LATE_TORCH = {
    **FAKE_TORCH,
    "torch/__init__.py": FAKE_TORCH["torch/__init__.py"]
    + """
class Tensor:
    def sin(self):
        return self
    sum = sin
    def __matmul__(self, other):
        return {(0, 0): 256.0}
def ones(*shape):
    return Tensor()
class default_generator:
    seed = staticmethod(int)
def get_num_threads():
    return 1
""",
    "torch/distributed.py": "def TCPStore(*_, **__): return object()\n",
    "torch/_dynamo.py": "",
    "torch/optim/optimizer.py": FAKE_TORCH["torch/optim/optimizer.py"]
    + """
    def __init__(self):
        import torch._dynamo
""",
}


def with_modules(tmp_path: Path, modules: Mapping[str, str]) -> dict[str, str]:
    """Write modules into a folder of their own; return the variables that let workers and the warm process find them."""
    folder = tmp_path / "modules"
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def are_up(job: Job, tmp_path: Path, attempt: int, nproc: int = 2) -> None:
    for rank in range(nproc):
        job.wait_for_file(f"up-{attempt}-{rank}", tmp_path)


def has_reduced(job: Job, tmp_path: Path, attempt: int, nproc: int = 2) -> None:
    for rank in range(nproc):
        job.wait_for_file(f"reduced-{attempt}-{rank}", tmp_path)


def standbys(job: Job, count: int) -> list[int]:
    """Return the pids of standby workers, once so many have been made."""
    return wait_for(
        lambda: (pids := [event["pid"] for event in job.events("standby_ready")]) and len(pids) >= count and pids,
        f"{count} standby workers",
    )


def how(job: Job) -> list[list[str]]:
    return [event["how"] for event in job.events("attempt_started")]


def test_after_a_kill_the_waiting_workers_are_promoted(tmp_path: Path) -> None:
    path = script(tmp_path, ALL_REDUCE % {"restarts": 1})
    with running(tmp_path, "--nproc-per-node", "2", path) as job:
        has_reduced(job, tmp_path, 0)
        waiting = standbys(job, 2)
        os.kill(job.pids()[1], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert how(job) == [["spawn", "spawn"], ["promote", "promote"]]
    assert set(job.events("attempt_started")[1]["pids"]) == set(waiting)
    assert "workers: 2 promoted" in job.err


def test_a_warm_worker_ignores_the_signals_that_one_started_from_nothing_ignores(tmp_path: Path) -> None:
    """As after `nohup`, or in the background of a script. What a job is told to end with is never ignored: we pass it on."""
    path = script(
        tmp_path,
        """
        import os, signal, time
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        with open("draft", "w") as file:
            file.write(" ".join(map(str, sorted(ignored))))
        os.rename("draft", f"ignored-{attempt}")
        while attempt != "2":
            time.sleep(0.01)
        """,
    )
    with running(tmp_path, *LIGHT, path, prefix=(*IGNORING, *UNSTOCKED)) as job:
        job.wait_for_file("ignored-0", tmp_path)
        standbys(job, 1)
        os.kill(job.pids(0)[0], signal.SIGKILL)
        job.wait_for_file("ignored-1", tmp_path)
        os.kill(job.pids(1)[0], signal.SIGKILL)
        assert job.finish() == 0
    assert how(job) == [["spawn"], ["promote"], ["fork"]]
    spawned, promoted, forked = (
        {int(word) for word in (tmp_path / f"ignored-{n}").read_text().split()} for n in range(3)
    )
    assert spawned == promoted == forked
    assert {signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM} <= promoted
    assert not {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM} & promoted


def test_a_second_kill_before_the_stock_is_full_again_forks(tmp_path: Path) -> None:
    path = script(tmp_path, THEN_REDUCES % {"restarts": 2})
    with running(tmp_path, "--nproc-per-node", "2", path, prefix=UNSTOCKED) as job:
        are_up(job, tmp_path, 0)
        standbys(job, 2)
        os.kill(job.pids(0)[1], signal.SIGKILL)
        has_reduced(job, tmp_path, 1)
        os.kill(job.pids(1)[0], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert how(job)[1:] == [["promote", "promote"], ["fork", "fork"]]
    assert "no standby worker was ready" in job.err


#: Starts the launcher so that it imports nothing in its idle time: that memory is no growth.
IMPORTS_NOTHING_AHEAD = (
    *PATIENT[:2],
    PATIENT[2].replace(
        "import sys;", "import sys; from robust_run import imported_ahead; imported_ahead.AFTER_S = 1e6;"
    ),
)


def test_a_hundred_kills_in_a_row(tmp_path: Path) -> None:
    """No relaunch fails, each kill is blamed rightly, and nothing of the agent grows: descriptors, threads, children, memory."""
    kills, nproc = 100, 2
    path = script(tmp_path, THEN_REDUCES % {"restarts": kills})
    sizes = {}
    options = ("--nproc-per-node", str(nproc), "--max-restarts", "1000", path)
    with running(tmp_path, *options, prefix=IMPORTS_NOTHING_AHEAD) as job:
        agent = job.agent_pid()
        for attempt in range(kills):
            if attempt == 0:
                are_up(job, tmp_path, 0)
                standbys(job, 2)
            else:
                has_reduced(job, tmp_path, attempt)
            if attempt == 50:
                sizes[attempt] = size_of(agent)
            elif attempt == kills - 1:  # a thread may be at work for a moment, as the one that draws pages
                fewest = sizes[50]["threads"]
                sizes[attempt] = wait_for(
                    lambda: (now := size_of(agent))["threads"] <= fewest and now,  # noqa: B023
                    f"no more threads than {fewest}",
                )
            os.kill(job.pids(attempt)[attempt % nproc], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    attempts = how(job)
    assert len(attempts) == kills + 1, "every relaunch succeeded at once"
    assert all("spawn" not in rungs for rungs in attempts[1:])
    verdicts = [action["verdict"]["ranks"] for action in job.actions("record_incident")]
    assert verdicts == [[attempt % nproc] for attempt in range(kills)], "every kill was needed, seen and blamed rightly"
    ports = [event["port"] for event in job.events("attempt_started")]
    assert all(before != after for before, after in pairwise(ports)), (
        "a new store for every attempt, beside the last one"
    )
    early, late = sizes[50], sizes[kills - 1]
    assert late["descriptors"] <= early["descriptors"] + 8
    assert late["children"] <= early["children"] + 2
    assert late["memory_kb"] <= early["memory_kb"] + 8192


def size_of(pid: int) -> dict[str, int]:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "children": len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
        "memory_kb": int(status["VmRSS"].split()[0]),
    }


def test_a_dead_standby_worker_is_replaced_and_killing_the_warm_process_harms_no_worker(tmp_path: Path) -> None:
    path = script(tmp_path, WAITS % {"restarts": 1})
    with running(tmp_path, "--nproc-per-node", "2", *LIGHT, path) as job:
        are_up(job, tmp_path, 0)
        victim = standbys(job, 2)[0]
        os.kill(victim, signal.SIGKILL)
        standbys(job, 3)
        os.kill(job.events("warm_ready")[0]["pid"], signal.SIGKILL)
        wait_for(lambda: job.events("warm_refused"), "its death to be seen")
        assert job.events("rank_exited") == []
        os.kill(job.pids(0)[1], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert how(job)[1] == ["promote", "promote"], "standby workers outlive it"
    assert victim not in job.events("attempt_started")[1]["pids"]


REFUSALS = {
    "starts_a_thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True, name='mine').start()\n",
        "a Python thread runs (mine)",
    ),
    "opens_a_socket": ("import socket\nsock = socket.socket()\n", "descriptor"),
    "has_a_child": ("import subprocess, sys\nchild = subprocess.Popen(['sleep', '600'])\n", "child process"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_preloaded_module_that_cannot_be_forked_is_named_and_left_out(tmp_path: Path, name: str) -> None:
    text, reason = REFUSALS[name]
    path = script(tmp_path, WAITS % {"restarts": 1})
    env = {**with_modules(tmp_path, {f"{name}.py": text}), "OMP_NUM_THREADS": "2"}
    with running(tmp_path, "--nproc-per-node", "2", "--preload", f"json,decimal,{name}", path, env=env) as job:
        are_up(job, tmp_path, 0)
        standbys(job, 2)
        os.kill(job.pids(0)[1], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    (refused,) = job.events("warm_refused")
    assert refused["module"] == name
    assert reason in refused["reason"]
    assert name not in job.events("warm_ready")[0]["modules"]
    assert how(job)[1] == ["promote", "promote"]
    assert name in job.err


def test_a_module_that_computes_in_parallel_at_import_does_no_harm(tmp_path: Path) -> None:
    """OpenMP's threads belong to the thread that computed: the importing one, which is gone before any fork."""
    text = "import torch\ntorch.sin(torch.ones(2000, 2000)).sum()\n"
    compute = "torch.sin(torch.ones(2000, 2000)).sum(); (torch.ones(300, 300) @ torch.ones(300, 300)).sum()\n"
    path = script(tmp_path, THEN_REDUCES % {"restarts": 1} + compute)
    env = {**with_modules(tmp_path, {"computes.py": text}), "OMP_NUM_THREADS": "2"}
    with running(tmp_path, "--nproc-per-node", "2", "--preload", "torch,computes", path, env=env) as job:
        are_up(job, tmp_path, 0)
        standbys(job, 2)
        os.kill(job.pids(0)[1], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert how(job)[1] == ["promote", "promote"]


def test_what_the_first_attempt_had_imported_before_its_first_step_is_imported_before_the_next(tmp_path: Path) -> None:
    assert Options(training_script="train.py").preload == "auto"
    path = script(
        tmp_path,
        """
        import os, sys, time
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        was_there = "packaging.specifiers" in sys.modules, "my_own" in sys.modules
        import torch, packaging.specifiers, my_own
        torch.optim.Optimizer().step()
        if attempt == "0":
            time.sleep(600)
        print(was_there)
        """,
    )
    script(tmp_path, "", "my_own.py")
    with running(tmp_path, path, env=with_modules(tmp_path, LATE_TORCH)) as job:
        wait_for(lambda: len(job.events("warm_ready")) >= 2, "the second round of imports")
        standby = wait_for(lambda: job.after("warm_ready", 2, "standby_ready"), "a standby worker made after it")[0]
        os.kill(job.pids(0)[0], signal.SIGKILL)
        assert job.finish() == 0
    assert job.events("attempt_started")[1]["pids"] == [standby["pid"]]
    assert job.out == "(True, False)\n"


def test_a_program_that_sets_variables_for_its_imports_has_only_torch_imported_for_it(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, sys, time
        was_there = "packaging.specifiers" in sys.modules
        os.environ["MY_SWITCH"] = "1"
        import torch, packaging.specifiers
        torch.optim.Optimizer().step()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        print(was_there)
        """,
    )
    with running(tmp_path, path, env=with_modules(tmp_path, LATE_TORCH)) as job:
        wait_for(lambda: job.after("warm_ready", 2, "standby_ready"), "a standby worker made after it")
        os.kill(job.pids(0)[0], signal.SIGKILL)
        assert job.finish() == 0
    assert job.events("warm_ready")[1]["modules"] == ["torch._dynamo"]
    assert job.out == "False\n"


def test_workers_that_were_not_ready_yet_are_promoted_and_that_is_said(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, pathlib, signal, time
        import torch
        optimizer = torch.optim.Optimizer()
        while not pathlib.Path("standby").exists():
            time.sleep(0.01)
        optimizer.step()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    with running(tmp_path, path, env=with_modules(tmp_path, LATE_TORCH)) as job:
        standbys(job, 1)
        (tmp_path / "standby").touch()
        assert job.finish() == 0
    assert how(job)[1] == ["promote"]
    assert "1 promoted: what the program imports had not all been preloaded yet" in job.err


def test_what_torch_imports_at_a_first_optimizer_is_there_before_the_next_and_the_stock_is_filled_after_each_first_step(
    tmp_path: Path,
) -> None:
    path = script(
        tmp_path,
        """
        import os, sys, time
        was_there = "torch._dynamo" in sys.modules, os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            if not os.path.exists(f"stepped-{attempt}"):
                with open("stepped", "w") as file:
                    print(was_there, file=file)
                os.rename("stepped", f"stepped-{attempt}")
            if attempt == "2":
                break
            time.sleep(0.01)
        """,
    )
    made: list[dict[str, Any]] = []
    with running(tmp_path, "--preload", "torch,torch.distributed", path) as job:
        for attempt in (0, 1):
            job.wait_for_file(f"stepped-{attempt}", tmp_path)
            # In the first attempt they are made anew once what its optimizer imported is there too.
            since = ("attempt_started", 2) if attempt else ("warm_ready", 2)
            made += wait_for(lambda: job.after(*since, "standby_ready"), "the stock to be full")[:1]  # noqa: B023
            os.kill(job.pids(attempt)[0], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    assert job.events("warm_ready")[1]["modules"] == ["torch._dynamo"]
    assert how(job)[1:] == [["promote"]] * 2
    assert [event["pids"] for event in job.events("attempt_started")[1:]] == [[each["pid"]] for each in made]
    assert [(tmp_path / f"stepped-{attempt}").read_text() for attempt in (1, 2)] == ["(True, None)\n"] * 2
    steps = [event["progress"]["steps"] for event in job.events("attempt_ended")]
    assert steps[1] > 0, "steps of promoted workers are counted"


def test_a_module_that_is_not_there_is_said_and_left_out(tmp_path: Path) -> None:
    path = script(tmp_path, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    with running(tmp_path, "--preload", "json,no_such_module_here", path) as job:
        ready = wait_for(lambda: job.events("warm_ready"), "the warm process")
        (tmp_path / "go").touch()
        assert job.finish() == 0
    assert "no_such_module_here" in ready[0]["skipped"][0]


def test_a_hung_canary_never_delays_a_relaunch(tmp_path: Path) -> None:
    text = "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(600))\n"
    path = script(tmp_path, WAITS % {"restarts": 1})
    arguments = ("--nproc-per-node", "2", "--preload", "json,hangs_children", path)
    with jobs.running(tmp_path, *arguments, env=with_modules(tmp_path, {"hangs_children.py": text})) as job:
        are_up(job, tmp_path, 0)
        os.kill(job.pids(0)[1], signal.SIGKILL)
        are_up(job, tmp_path, 1)
        assert job.finish() == 0
        job.assert_nothing_left()
    second = job.events("attempt_started")[1]
    assert second["how"] == ["spawn", "spawn"]
    assert any(word in second["why"] for word in ("importing", "hung", "not been started"))


NEVER_FORKED = {
    "--no-warm": (("--no-warm",), {}),
    "--max-restarts is 0": (("--max-restarts", "0"), {}),
    "LD_PRELOAD is set": ((), {"LD_PRELOAD": "/lib/x86_64-linux-gnu/libm.so.6"}),
    "coverage": ((), {"COVERAGE_PROCESS_START": "x"}),
}


@pytest.mark.parametrize("reason", NEVER_FORKED)
def test_where_a_fork_would_not_be_the_same_workers_are_spawned_and_told_why(tmp_path: Path, reason: str) -> None:
    arguments, env = NEVER_FORKED[reason]
    if "LD_PRELOAD" in env and not Path(env["LD_PRELOAD"]).exists():
        pytest.skip("no libm.so.6 where Debian has it")
    path = script(tmp_path, "import os; os._exit(9 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)")
    _, job = run(tmp_path, *arguments, path, env=env)
    assert all(rungs == ["spawn"] for rungs in how(job))
    assert reason in job.events("attempt_started")[-1]["why"]
    assert job.events("warm_ready") == []


def test_a_program_without_python_is_spawned(tmp_path: Path) -> None:
    shell = tmp_path / "run.sh"
    shell.write_text("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 1\n")
    shell.chmod(0o755)
    code, job = run(tmp_path, "--no-python", str(shell))
    assert (code, how(job)) == (0, [["spawn"], ["spawn"]])
    assert "not run by a Python of ours" in job.err


def test_ranks_of_a_promoted_attempt_draw_different_random_numbers(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, random, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        import torch
        print(torch.rand(1).item(), random.random())
        """,
    )
    with running(tmp_path, "--nproc-per-node", "2", path) as job:
        standbys(job, 2)
        os.kill(job.pids(0)[0], signal.SIGKILL)
        assert job.finish() == 0
    numbers = [word for line in job.out.splitlines() for word in line.split()]
    assert len(set(numbers)) == len(numbers) == 4


def test_code_that_changed_since_the_start_is_what_runs(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 'old'\n")
    path = script(
        tmp_path,
        """
        import os, time
        import helper
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        print("second edition of the script, helper is", helper.VALUE)
        """,
    )
    with running(tmp_path, "--code", "in-place", *LIGHT, path) as job:
        standbys(job, 1)
        (tmp_path / "helper.py").write_text("VALUE = 'new and longer'\n")
        os.kill(job.pids(0)[0], signal.SIGKILL)
        assert job.finish() == 0
    assert job.out == "second edition of the script, helper is new and longer\n"


def test_exit_handlers_of_what_was_imported_before_belong_to_the_program(tmp_path: Path) -> None:
    """A worker that dies in one has not ended: it is started again. One that dies after all of them has."""
    path = script(
        tmp_path,
        """
        import os, sys, time, weakref
        import torch
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        class Kept:
            def __del__(self, kill=os.kill, pid=os.getpid(), crashes=attempt == "2"):
                if crashes:
                    kill(pid, 11)
        while attempt == "0" and not os.path.exists("go"):
            time.sleep(0.02)
        if attempt == "0":
            os.kill(os.getpid(), 9)
        sys.kept = Kept()
        if attempt == "1":
            weakref.finalize(sys.kept, os.kill, os.getpid(), 11)  # torch has used weakref.finalize by then
        """,
    )
    with running(tmp_path, "--preload", "torch", "--max-restarts", "3", path) as job:
        standbys(job, 1)
        (tmp_path / "go").touch()
        assert job.finish() == 139, job.err
    assert [each["verdict"]["rule"] for each in job.actions("record_incident")] == [
        "died_of_signal", "died_of_signal", "crashed_at_exit",
    ]  # fmt: skip
    assert how(job)[1] == ["promote"]
