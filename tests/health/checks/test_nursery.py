"""Check programs that are forked from one process which has imported torch: as if each had been started, whatever it does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.health.checks import fleet
from robust_run.health.checks.fleet import CheckListener, check
from robust_run.health.checks.plan import CheckRound, Wish
from robust_run.health.checks.types import (
    Began,
    CheckProgramOrder,
    Ended,
    Finished,
    Meeting,
    NodeFacts,
    NodeOrder,
    Result,
    Said,
)
from robust_run.health.diagnostics.devices import DETERMINISTIC
from robust_run.health.diagnostics.forked import VARIABLE, nursery_for
from robust_run.health.diagnostics.here import LocalFleet

pytestmark = pytest.mark.timeout(600)  # each program imports torch

STUCK_S = 240.0
RUNNER = [sys.executable, "-m", "robust_run.health.diagnostics.node"]
NURSERY = "robust_run.health.diagnostics.nursery"

#: In each process: who looks for torch is noted, and the process that forks programs has an accident then. Who stops itself says
#: first how it is within. Imports that get on may take minutes, as among other tests they do.
SITE = """
import importlib.abc, json, os, signal, sys, threading, time

FOLDER = os.environ["TEST_FOLDER"]
stop, is_nursery = os.kill, any("diagnostics.nursery" in word for word in sys.orig_argv)

class Looking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        forked = sys.modules.get("robust_run.health.diagnostics.forked")
        if name == "robust_run.health.diagnostics.handing" and "sleep" not in os.environ.get("TEST_ACCIDENT", ""):
            forked.IMPORT_S = 240.0
        if name == "torch":
            sys.meta_path.remove(self)
            with open(f"{FOLDER}/imports", "a") as file:
                file.write(f"{os.getpid()}\\n")
            if is_nursery:
                exec(os.environ.get("TEST_ACCIDENT", ""), globals())

def kill(pid, number):
    if number == signal.SIGSTOP and pid == os.getpid():
        import gc, random, torch
        inner = {
            "gc": gc.get_threshold(), "argv": sys.argv, "words": sys.orig_argv[1:], "env": dict(os.environ),
            "handlers": [str(signal.getsignal(n)) for n in range(1, 32)], "cuda": torch.cuda.is_initialized(),
            "fork": str(torch.cuda._is_in_bad_fork()), "threads": threading.active_count(),
            "stdin": [sys.stdin.fileno(), sys.stdin.seekable(), sys.stdin.mode],
        }
        drawn = [random.random(), torch.initial_seed(), torch.rand(1).item()]
        if "numpy" in sys.modules:
            drawn.append(sys.modules["numpy"].random.random())
        with open(f"{FOLDER}/inner.{pid}", "w") as file:
            json.dump({"inner": inner, "drawn": drawn}, file)
    stop(pid, number)

os.kill = kill
sys.meta_path.insert(0, Looking())
"""


def order(check: str, **more: Any) -> CheckProgramOrder:
    return CheckProgramOrder(
        **{"check": check, "node": "a", "seconds": 0.0, "passes": 2, "size_bytes": 1 << 20, "limit_s": 100.0, **more}
    )


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a node waits for imports that take long."""
    monkeypatch.setattr(fleet, "SLACK_S", STUCK_S)


class Watched:
    """A runner whose processes are looked at."""

    def __init__(self, ground: Any, *, fork: bool, accident: str = "", faults: tuple[dict[str, Any], ...] = ()) -> None:
        self.folder = ground.folder / f"fork-{fork}"
        (self.folder / "site").mkdir(parents=True)
        (self.folder / "site" / "sitecustomize.py").write_text(SITE)
        root = str(Path(__file__).parents[3])
        self.env = {
            **ground.env(*faults),
            "PYTHONPATH": f"{self.folder / 'site'}:{root}",
            "TEST_FOLDER": str(self.folder),
            "TEST_ACCIDENT": accident,
            VARIABLE: str(int(fork)),
        }

    def run(self, *steps: tuple[CheckProgramOrder, ...], runner: list[str] = RUNNER) -> list[Said]:
        """Return what it says, to its end."""
        data = msgspec.json.encode(NodeOrder(steps=steps))
        done = subprocess.run(runner, input=data, stdout=subprocess.PIPE, env=self.env, timeout=STUCK_S, check=True)
        return [msgspec.json.decode(line, type=Said) for line in done.stdout.splitlines()]

    @contextmanager
    def running(
        self, *steps: tuple[CheckProgramOrder, ...], fds: tuple[int, ...] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Have it run, and end it in any case."""
        with subprocess.Popen(
            RUNNER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env, pass_fds=fds
        ) as runner:
            assert runner.stdin is not None
            runner.stdin.write(msgspec.json.encode(NodeOrder(steps=steps)))
            runner.stdin.close()
            try:
                yield runner
            finally:
                runner.kill()

    def imports(self) -> list[str]:
        """Return who imported torch."""
        return (self.folder / "imports").read_text().split()


def results_of(said: list[Said]) -> list[Result]:
    return [each.result for each in said if isinstance(each, Ended)]


def same(results: list[Result]) -> list[Any]:
    """Return of results what does not depend on the time that something took."""
    return sorted(
        (each.check, each.outcome, each.kind, each.passes, each.digests, each.wrong, each.problem) for each in results
    )


def processes(runner: int) -> dict[str, int]:
    """Return the children of a runner by what they are: a check's name, or nursery."""
    found = {}
    for pid in Path(f"/proc/{runner}/task/{runner}/children").read_text().split():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        for word in words:
            if word.startswith("robust_run.health.diagnostics."):
                found[word.rpartition(".")[2]] = int(pid)
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for(what: Callable[[], Any], words: str) -> Any:
    give_up_at_s = time.monotonic() + STUCK_S
    while not (found := what()):
        assert time.monotonic() < give_up_at_s, words
        time.sleep(0.02)
    return found


# --- once -----------------------------------------------------------------------------------------------------------


def test_torch_is_imported_once_for_all_programs_and_they_find_the_same(ground: Any) -> None:
    steps = ((order("compute"),), (order("model"), order("memory")), (order("disk", folder=str(ground.folder)),))
    forked, started = Watched(ground, fork=True), Watched(ground, fork=False)
    said = forked.run(*steps)
    assert [type(each) for each in said].count(Began) == 3 and said[-1] == Finished()
    assert same(results_of(said)) == same(results_of(started.run(*steps)))
    assert {each.outcome for each in results_of(said)} == {"done"}
    assert len(forked.imports()) == 1
    assert len(set(started.imports())) == 3


def test_a_single_program_and_whoever_does_not_want_it_start_from_nothing() -> None:
    assert nursery_for(["compute", "disk"], {}) is None
    assert nursery_for(["disk", "disk"], {}) is None
    assert nursery_for(["compute", "model"], {VARIABLE: "0"}) is None
    assert nursery_for(["compute", "compute"], {}) is not None


def test_all_rounds_of_a_node_have_one_import(ground: Any) -> None:
    watched = Watched(ground, fork=True)
    facts = NodeFacts(name="a", folder=str(ground.folder), interface="lo")
    session = check(LocalFleet([facts], watched.env), Wish(seconds=0.0, passes=2, size_bytes=1 << 20))
    found = [each.check for each in session.results]
    assert found == ["compute", "model", "memory", "disk", "exchange", "exchange"]
    assert {each.outcome for each in session.results} == {"done"}
    assert len(watched.imports()) == 1
    assert ground.left() == []


def test_devices_of_a_check_have_one_import_whatever_else_is_checked(ground: Any) -> None:
    watched = Watched(ground, fork=True)
    facts = NodeFacts(name="a", folder=str(ground.folder), interface="lo")
    wish = Wish(only=("disk", "exchange"), seconds=0.0, passes=2, size_bytes=1 << 20)
    session = check(LocalFleet([facts], watched.env), wish)
    assert [each.outcome for each in session.results] == ["done"] * 3
    assert len(watched.imports()) == 1


def test_a_runner_that_dies_between_two_rounds_has_a_successor(ground: Any) -> None:
    watched = Watched(ground, fork=True)

    class Unkind(CheckListener):
        def on_round(self, made: CheckRound) -> None:
            if made.check == "model":
                runners = Path("/proc/self/task").glob("*/children")
                for pid in [int(each) for path in runners for each in path.read_text().split()]:
                    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2] == RUNNER[2].encode():
                        os.kill(pid, signal.SIGKILL)
                        wait_for(lambda pid=pid: state(pid) == "Z", "it to die")

    wish = Wish(only=("compute", "model"), seconds=0.0, passes=2, size_bytes=1 << 20)
    session = check(LocalFleet([NodeFacts(name="a")], watched.env), wish, watcher=Unkind())
    assert [(each.check, each.outcome) for each in session.results] == [("compute", "done"), ("model", "done")]
    assert len(watched.imports()) == 2


def test_a_program_that_hangs_leaves_later_rounds_as_they_are(ground: Any) -> None:
    watched = Watched(ground, fork=True, faults=({"check": "compute", "hang": True},))
    wish = Wish(only=("compute", "model", "memory"), seconds=0.0, passes=2, size_bytes=1 << 20, limit_s=4.0)
    session = check(LocalFleet([NodeFacts(name="a")], watched.env), wish)
    assert [(each.check, each.outcome) for each in session.results] == [
        ("compute", "hung"),
        ("model", "done"),
        ("memory", "done"),
    ]
    assert len(watched.imports()) == 1


# --- the same -------------------------------------------------------------------------------------------------------


def seen(watched: Watched) -> dict[str, Any]:
    """Return what can be seen of a program that stopped itself, from without and within."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        meeting = Meeting(rank=0, nodes=("a", "a"), port=listening.getsockname()[1], listen_fd=number)
        with watched.running((order("exchange", meeting=meeting), order("memory")), fds=(number,)) as runner:
            pid = wait_for(lambda: processes(runner.pid).get("exchange"), "the program to run")
            wait_for(lambda: state(pid) == "T", "the program to stop itself")
            within = json.loads((watched.folder / f"inner.{pid}").read_text())
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            descriptors = {each.name: os.readlink(each).partition(":")[0] for each in Path(f"/proc/{pid}/fd").iterdir()}
            assert within["inner"]["env"].pop("ROBUST_CHECK_PARENT") == str(runner.pid)
            within["inner"]["env"].pop(VARIABLE)
            return {
                **within,
                "parent": int(fields[1]) == runner.pid,
                "leads": [int(fields[2]) == pid, int(fields[3]) == pid],
                "cwd": os.readlink(f"/proc/{pid}/cwd"),
                "cmdline": Path(f"/proc/{pid}/cmdline").read_bytes(),
                "environ": sorted(each for each in environ if not each.startswith(("ROBUST_CHECK_PARENT", VARIABLE))),
                "comm": Path(f"/proc/{pid}/comm").read_text(),
                "descriptors": {name: what for name, what in descriptors.items() if what != "/dev/urandom"},
                "socket": os.readlink(f"/proc/{pid}/fd/{number}") == os.readlink(f"/proc/self/fd/{number}"),
                "limits": Path(f"/proc/{pid}/limits").read_text(),
                "oom": Path(f"/proc/{pid}/oom_score_adj").read_text(),
                **{name: status[name] for name in ("SigIgn", "SigCgt", "SigBlk", "Umask", "Cpus_allowed")},
            }


def test_a_forked_program_is_as_one_that_was_started(ground: Any) -> None:
    found = [seen(Watched(ground, fork=fork, faults=({"stop": True},))) for fork in (True, False)]
    drawn = [each.pop("drawn") for each in found]
    for each in found:  # the two have different folders; what a program sets before it imports torch is set
        env = each["inner"]["env"]
        each["inner"]["env"] = {
            name: env[name] for name in env.keys() - DETERMINISTIC.keys() if "fork-" not in env[name]
        }
        each["environ"] = [text for text in each["environ"] if "fork-" not in text]
    forked, started = found
    assert forked == started
    assert not set(drawn[0]) & set(drawn[1])


def test_programs_do_not_draw_the_same_random_numbers(ground: Any) -> None:
    watched = Watched(ground, fork=True, faults=({"stop": True},))
    with watched.running((order("memory"), order("model"))) as runner:
        wait_for(lambda: len(list(watched.folder.glob("inner.*"))) == 2, "both to stop")
        pids = [pid for name, pid in processes(runner.pid).items() if name != "nursery"]
        for pid in pids:
            wait_for(lambda pid=pid: state(pid) == "T", "the program to stop itself")
        first, second = [json.loads((watched.folder / f"inner.{pid}").read_text())["drawn"] for pid in pids]
        assert not set(first) & set(second)


# --- accidents ------------------------------------------------------------------------------------------------------

ACCIDENTS = {
    "hangs": "time.sleep(3600)",
    "raises": "raise OSError('no such disk')",
    "dies": "stop(os.getpid(), signal.SIGSEGV)",
    "has a thread": "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
    "has initialised CUDA": "import torch; torch.cuda.is_initialized = lambda: True",
    "dies once it is ready": "os.register_at_fork(before=lambda: sys.modules.get('torch') and count())",
}
COUNTING = """
forks = []
def count():
    forks.append(1)
    if len(forks) > 2:  # the canary's, and the first program's
        os._exit(1)
"""


TWO = (order("memory"), order("model"))
STARTED: list[list[Any]] = []
"""What they find where they are started from nothing, once it is known: each import takes a second."""


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_whatever_becomes_of_the_one_that_forks_programs_run(ground: Any, accident: str) -> None:
    code = (COUNTING if "once it is ready" in accident else "") + ACCIDENTS[accident]
    unlucky = Watched(ground, fork=True, accident=code)
    said = unlucky.run(TWO)
    if not STARTED:
        STARTED.append(same(results_of(Watched(ground, fork=False).run(TWO))))
    assert same(results_of(said)) == STARTED[0]
    assert {each.outcome for each in results_of(said)} == {"done"} and said[-1] == Finished()
    assert len(set(unlucky.imports())) >= 2  # the one that forks, and programs that were started


def test_a_program_that_cannot_be_forked_for_want_of_descriptors_is_started(ground: Any) -> None:
    limited = ["prlimit", "--nofile=11", *RUNNER]  # with fewer none can be started, either
    said = Watched(ground, fork=True).run((order("memory"),), (order("model"),), runner=limited)
    assert [each.outcome for each in results_of(said)] == ["done", "done"]


def test_a_fork_that_hangs_costs_a_moment_and_no_result(ground: Any) -> None:
    code = "os.register_at_fork(after_in_child=lambda: time.sleep(3600))"
    said = Watched(ground, fork=True, accident=code).run((order("memory"), order("model")))
    assert [each.outcome for each in results_of(said)] == ["done", "done"] and said[-1] == Finished()


@pytest.mark.parametrize(
    "fault", [{"hang": True}, {"stop": True}, {"crash": signal.SIGSEGV}, {"escape": True, "crash": 9}]
)
def test_what_a_program_does_is_no_harm_to_others(ground: Any, fault: dict[str, Any]) -> None:
    watched = Watched(ground, fork=True, faults=({"check": "memory", **fault},))
    said = watched.run((order("memory", limit_s=3.0), order("model")), (order("compute"),))
    found = {each.check: (each.outcome, each.problem) for each in results_of(said)}
    crashed = fault.get("crash")
    assert found.pop("memory") == (
        ("crashed", f"was killed by {signal.Signals(crashed).name} (signal {int(crashed)})")
        if crashed
        else ("hung", "killed at its limit of 3 s")
    )
    assert found == {"model": ("done", ""), "compute": ("done", "")}
    assert said[-1] == Finished(left=())
    assert len(watched.imports()) == 1, "the one that forks lives on"
    assert ground.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("accident", ["", "hangs"])
def test_a_runner_that_is_ended_takes_all_with_it(ground: Any, number: signal.Signals, accident: str) -> None:
    watched = Watched(ground, fork=True, accident=ACCIDENTS.get(accident, ""), faults=({"hang": True},))
    with watched.running((order("memory"), order("model"))) as runner:
        wanted = {"nursery"} if accident else {"nursery", "memory", "model"}
        wait_for(lambda: wanted <= processes(runner.pid).keys(), "all to run")
        os.kill(runner.pid, number)
        assert runner.wait(STUCK_S) == (143 if number == signal.SIGTERM else -number)
        ground.assert_nothing_left()
