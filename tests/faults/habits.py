"""What healthy programs do that looks like a fault: checkpoints, evaluation, a slow first step, collections of garbage."""

from __future__ import annotations

import builtins
import os
import random
import signal
import time

import torch
from plan import Plan, note


class Habits:
    """What this rank does beside training. `fault` of the plan names the habit."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self.plan, self.rank, self.world = plan, rank, world
        self.heard = self.sent = 0
        self._random = random.Random(plan.seed * 100 + rank)
        if plan.fault == "own_signal":
            signal.signal(signal.SIGUSR2, self._hear)
        if plan.fault == "own_sitecustomize":
            assert getattr(builtins, "USERS_SITECUSTOMIZE", None) == "ran", "the user's sitecustomize did not run"
            note(plan, f"own-{rank}", "sitecustomize")

    def _hear(self, number: int, frame: object) -> None:
        self.heard += 1

    def before_step(self, step: int) -> None:
        """Whatever the habit does before a step of that number."""
        habit = getattr(self, f"_{self.plan.fault}", None)
        if habit is not None:
            habit(step)

    def stage_factor(self, stage: int) -> float:
        """Return by how much more a stage of the pipeline computes than the first."""
        return 1.0 + 1.5 * stage if self.plan.fault == "uneven_stages" else 1.0

    def _number(self, name: str, otherwise: float) -> float:
        return self.plan.numbers.get(name, otherwise)

    def _all_slow(self, step: int) -> None:
        if step and step % 20 == 0:
            time.sleep(self._number("pause_s", 1.0))

    def _checkpoint(self, step: int) -> None:
        if self.rank == 0 and step and step % 40 == 0:
            time.sleep(self._number("pause_s", 1.5))

    def _big_checkpoint(self, step: int) -> None:
        """Rank 0 writes for seconds, as a large model does: many pieces, each to the disk."""
        if self.rank == 0 and step == 60:
            until_s = time.monotonic() + self._number("pause_s", 8.0)
            path = os.path.join(self.plan.notes, "checkpoint")
            piece = torch.zeros(2_000_000)
            while time.monotonic() < until_s:
                torch.save({"piece": piece}, path)
                time.sleep(0.05)
            os.remove(path)

    def _evaluation(self, step: int) -> None:
        if step and step % 60 == 0:
            time.sleep(self._number("pause_s", 3.0))

    def _uneven_evaluation(self, step: int) -> None:
        """Every rank evaluates its own share; the last has the longest."""
        if step and step % 60 == 0:
            for _ in range(20 + 20 * self.rank // max(1, self.world - 1)):
                _evaluate_batch(0.1)

    def _slow_first_step(self, step: int) -> None:
        """As if torch.compile were at work: seconds of computing in many functions, uneven between ranks."""
        if step == 0:
            until_s = time.monotonic() + self._number("pause_s", 6.0) * (0.7 + 0.3 * self.rank / max(1, self.world - 1))
            while time.monotonic() < until_s:
                _analyse(self._random.random())

    def _garbage(self, step: int) -> None:
        if self._random.random() < 0.03:
            time.sleep(0.2 + 0.2 * self._random.random())

    def _own_signal(self, step: int) -> None:
        if step % 10 == 0:
            assert signal.getsignal(signal.SIGUSR2) == self._hear, "the program's own handler is gone"
            os.kill(os.getpid(), signal.SIGUSR2)
            self.sent += 1
            assert self.heard == self.sent, f"{self.sent} signals were sent, {self.heard} came"
            if step == 50:
                note(self.plan, f"own-{self.rank}", "signal")


def _evaluate_batch(seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return torch.ones(8, 8) @ torch.ones(8, 8)


def _analyse(value: float) -> object:
    return _transform([value] * 200) if value < 0.5 else _emit(value)


def _transform(values: list[float]) -> list[float]:
    return sorted(value * 0.5 for value in values for _ in range(200))


def _emit(value: float) -> str:
    return "".join(f"{value:.3f}" for _ in range(20_000))
