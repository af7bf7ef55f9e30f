"""Storage that is full, read-only, breaks off or hangs while it is written beside a training: the training goes on as if it were
well, people hear of it once, nothing half counts, and once it is well again it is written."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from jobs import wait_for
from keepers import LIMIT_S, KeeperGround
from made_ranks import Ranks
from storage_faults import Fault, FullDisk, HalfAStore, Hanging, ReadOnlyFolder

from robust_run.ckpt_io import catalog
from robust_run.ckpt_io.memory.agent_protocol import Flushed, FlushLast
from robust_run.ckpt_io.memory.flushing.process import FlushLimits, FlushProcess
from robust_run.ckpt_io.memory.flushing.words import FlushDone, FlushSilent, RemoveOld
from robust_run.ckpt_io.rules.keeping import KeepNewest

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


class Training:
    """Ranks that save at every step, and their keeper, until it is enough."""

    def __init__(self, stack: ExitStack, folder: Path, url: str, ranks: Ranks) -> None:
        folder.mkdir()
        (folder / "memory").mkdir(mode=0o700)
        self.url = url
        self.keeper = KeeperGround(str(folder / "memory")).ready()
        stack.callback(self.keeper.end)
        self.ranks = ranks
        self._steps, self._enough = folder / "steps", folder / "enough"
        self.keeper.begin_attempt(0, (0, 1))
        self._values: list[Any] = []
        env = {
            "ROBUST_CKPT_MEMORY": self.keeper.folder,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "ROBUST_JOB": "job",
            "ROBUST_CKPT_DIR": url,
            "ROBUST_CKPT_EVERY": "2",
            "STEPS_FILE": str(self._steps),
            "ENOUGH_FILE": str(self._enough),
        }
        self._thread = threading.Thread(target=lambda: self._values.extend(self.ranks.do("go_on", 2, **env)))
        self._thread.start()
        stack.callback(self.finish)

    def step(self) -> int:
        with suppress(OSError, ValueError):
            return int(self._steps.read_text())
        return 0

    def makes_steps(self, count: int = 20) -> None:
        """Wait for so many more."""
        until = self.step() + count
        wait_for(lambda: self.step() >= until, f"step {until}; now {self.step()}")

    def finish(self) -> list[Any]:
        """End it; what the ranks say: the step that they began at and the last one."""
        self._enough.touch()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert all(each and "value" in each for each in self._values), self._values
        return [each["value"] for each in self._values]

    def valid(self) -> list[int]:
        return valid(self.url)


def ranks_of_this_environment(stack: ExitStack, folder: Path) -> Ranks:
    """A process of its own, which has the variables of this test."""
    folder.mkdir()
    ranks = Ranks(folder)
    stack.enter_context(ranks.process)
    stack.callback(lambda: ranks.process.stdin and ranks.process.stdin.close())
    return ranks


def valid(url: str) -> list[int]:
    path = url.removeprefix("half://")
    if not os.path.isdir(path):
        return []
    return sorted(each.step or 0 for each in catalog.list_checkpoints(path) if each.state == "valid")


FAULTS: dict[str, Callable[[ExitStack, Path, pytest.MonkeyPatch], Fault]] = {
    "full": lambda stack, folder, _: FullDisk(stack, folder),
    "read-only": lambda stack, folder, _: ReadOnlyFolder(stack, folder),
    "half": lambda _, folder, monkeypatch: HalfAStore(folder, monkeypatch),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_training_goes_on_beside_storage_that_fails_and_storage_has_it_when_it_is_well(
    ranks: Ranks, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fault = FAULTS[kind](stack, tmp_path, monkeypatch)
    if kind == "half":  # Python finds that store by a variable
        ranks = ranks_of_this_environment(stack, tmp_path / "ranks")
    training = Training(stack, tmp_path / "training", fault.url, ranks)
    said = training.keeper.noted("could not be written from memory to")
    assert fault.words in said and said.endswith("training goes on, and it is tried again when storage is due"), said
    training.makes_steps()
    assert training.valid() == []
    fault.heal()
    again = training.keeper.noted("storage can be written again")
    assert "was written from memory to" in again
    training.makes_steps()
    found = training.finish()
    assert found[0] == found[1]
    training.keeper.tell(FlushLast(number=1, limit_s=LIMIT_S))
    last = training.keeper.next_of(Flushed)
    assert last.is_stored, last.text
    assert training.keeper.notes == [said, again], "each is told once"
    steps = training.valid()
    assert steps[-1] >= found[0][1] - 1, (steps, found)
    path = fault.url.removeprefix("half://")
    states = [each for each in catalog.list_checkpoints(path) if each.state != "valid" or each.leftovers]
    assert states == [], "what was half is gone"
    env = {"ROBUST_CKPT_DIR": fault.url, "STEPS_FILE": str(tmp_path / "s"), "ENOUGH_FILE": "/"}
    begun = ranks.values("go_on", 2, **env)
    assert [each[0] for each in begun] == [steps[-1]] * 2


def test_a_training_goes_on_beside_storage_that_hangs_and_nothing_is_written_in_its_place(
    ranks: Ranks, stack: ExitStack, tmp_path: Path
) -> None:
    fault = Hanging(stack, tmp_path)
    training = Training(stack, tmp_path / "training", fault.url, ranks)
    wait_for(training.valid, "a checkpoint")
    fault.begin()
    stack.callback(fault.heal)
    training.makes_steps(40)
    before = valid(str(fault.behind / "ckpt"))
    training.makes_steps(40)
    assert valid(str(fault.behind / "ckpt")) == before, "it hangs"
    fault.heal()
    wait_for(lambda: len(training.valid()) > len(before) + 1, "storage to be written again")
    begun, ended = training.finish()[0]
    assert (begun, ended > 80) == (0, True)
    assert not [note for note in training.keeper.notes if "could not" in note], training.keeper.notes


def test_a_process_that_storage_holds_fast_is_told_given_up_and_left_behind(stack: ExitStack, tmp_path: Path) -> None:
    """It cannot be killed: as long as it is there, nobody waits for it."""
    fault = Hanging(stack, tmp_path)
    (fault.behind / "ckpt" / "step-1").mkdir(parents=True)
    fault.begin()
    order = RemoveOld(folder=fault.url, rule=KeepNewest(most=1, session="me"))
    limits = FlushLimits(ends_within_s=0.2, silent_s=0.3, stall_s=0.6)
    process = FlushProcess(order, (), None, limits)
    assert isinstance(process.next(), FlushSilent)
    done = process.next()
    assert isinstance(done, FlushDone) and done.is_left
    assert "cannot be ended: storage hangs" in done.text
    assert not process.is_over()
    fault.heal()
    wait_for(process.is_over, "the process to end")
    assert (fault.behind / "ckpt" / "step-1").exists()


def test_the_end_of_a_job_does_not_wait_for_storage_that_hangs(ranks: Ranks, stack: ExitStack, tmp_path: Path) -> None:
    fault = Hanging(stack, tmp_path)
    training = Training(stack, tmp_path / "training", fault.url, ranks)
    wait_for(training.valid, "a checkpoint")
    before = valid(str(fault.behind / "ckpt"))
    fault.begin()
    stack.callback(fault.heal)
    training.makes_steps()
    training.finish()
    training.keeper.tell(FlushLast(number=1, limit_s=1.0))
    said = training.keeper.next_of(Flushed)
    assert not said.is_stored
    assert said.text, "it is said"
    fault.heal()
    assert set(valid(str(fault.behind / "ckpt"))) >= set(before)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_a_process_that_is_killed_at_some_point_costs_one_line_and_what_it_wrote(
    ranks: Ranks, stack: ExitStack, tmp_path: Path, after_s: float
) -> None:
    folder = tmp_path / "ckpt"
    training = Training(stack, tmp_path / "training", str(folder), ranks)
    killed = 0
    while not killed:
        pids = wait_for(lambda: children_of(training.keeper.process.pid), "a process that writes")
        time.sleep(after_s)
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)
            killed = pids[0]
        assert all(each.state in ("valid", "unfinished") for each in catalog.list_checkpoints(str(folder)))
    before = training.valid()
    wait_for(lambda: len(training.valid()) >= len(before) + 2, "the next ones")
    training.finish()
    training.keeper.tell(FlushLast(number=1, limit_s=LIMIT_S))
    assert training.keeper.next_of(Flushed).is_stored
    found = catalog.list_checkpoints(str(folder))
    assert [each for each in found if each.state != "valid" or each.leftovers] == []
    kills = [note for note in training.keeper.notes if "killed by signal 9" in note]
    assert len(kills) <= 1 and len(training.keeper.notes) <= 2, training.keeper.notes


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found
