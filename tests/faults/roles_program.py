"""A job of three roles with the queues, versions and checkpoints of `examples/rl/dapo.py`, and a sum in the place of the model.

    robust-run --roles FILE, in which each role runs this file with `synchronous` or `asynchronous`

The trainer asks for numbers; a rollout answers each from the weights and the number; the reward says which answers are right; the
trainer makes new weights of them. It saves every `SAVE_EVERY` steps, so a trainer that dies goes back, and ends when there is a
file `over`. All is of integers: `weights_after` computes what an undisturbed synchronous run comes to.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from robust_run import roles

PRIME = 2**31 - 1
WIDTH = 8
ROUND = 8
"""Answers of a step."""
IN_FLIGHT = 24
SAVE_EVERY = 3
STALE = 4
PAUSE_S = 0.02
NEWEST = -1


def first_weights() -> list[int]:
    """Return what a trainer begins with."""
    return list(range(1, WIDTH + 1))


def answer(weights: Sequence[int], number: int) -> int:
    """Return what a rollout says to a number."""
    return int.from_bytes(hashlib.sha256(f"{weights} {number}".encode()).digest()[:4], "big") % PRIME


def is_right(said: int) -> bool:
    """Whether the reward takes an answer for right: three of four are."""
    return said % 4 != 0


def learned(weights: Sequence[int], answers: Sequence[int]) -> list[int]:
    """Return the weights after a step with these answers, in this order."""
    made = list(weights)
    for said in answers:
        made = [(each * 31 + said * (place + 1)) % PRIME for place, each in enumerate(made)]
    return made


def weights_after(steps: int) -> list[int]:
    """Return the weights after so many synchronous steps in which nothing was lost, trained twice or out of order."""
    weights = first_weights()
    for step in range(steps):
        said = [answer(weights, number) for number in range(step * ROUND, (step + 1) * ROUND)]
        weights = learned(weights, [each for each in said if is_right(each)])
    return weights


def replace(name: str, what: object) -> None:
    """Write a file as a whole."""
    aside = Path(f"{name}.{os.getpid()}")
    aside.write_text(json.dumps(what))
    aside.replace(name)


class Trainer:
    """Weights on their way."""

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        self.prompts, self.scored = roles.queue("prompts"), roles.queue("scored")
        self.step, self.asked = 0, 0
        self.weights = first_weights()
        self.history: list[int] = []
        """Numbers whose answers were trained on or dropped, in order."""
        saved = json.loads(Path("saved").read_text()) if Path("saved").exists() else {"queue": None}
        if saved["queue"] is not None:
            self.step, self.asked, self.weights, self.history = (
                saved[name] for name in ("step", "asked", "weights", "history")
            )
        self.scored.load_state_dict(saved["queue"])
        replace("weights", [self.step, self.weights])
        roles.ready()

    def run(self) -> None:
        """Train until somebody says that it is over."""
        while not Path("over").exists():
            taken = self._taken()
            self.history += [number for number, _ in taken]
            self.weights = learned(self.weights, [said for _, said in taken if is_right(said)])
            self.step += 1
            if self.step % SAVE_EVERY == 0:
                self._save()
            replace("weights", [self.step, self.weights])
            replace("trained", self.step)
            time.sleep(PAUSE_S)
        refused = self.scored.counts().stale
        replace("final", [self.step, self.weights, self.history, self.asked, refused])

    def _save(self) -> None:
        queue = self.scored.state_dict()
        saved = {"step": self.step, "asked": self.asked, "weights": self.weights, "history": self.history}
        replace("saved", {**saved, "queue": queue})
        self.scored.release(queue)  # it is durable: no trainer goes back to before it

    def _taken(self) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        while len(taken) < ROUND:
            if self.synchronous:
                self._ask((self.step + 1) * ROUND, self.step)
                least = 0
            else:
                self._ask(len(self.history) + len(taken) + self.scored.counts().stale + IN_FLIGHT, NEWEST)
                least = max(self.step - STALE, 0)
            items = self.scored.take(ROUND - len(taken), least_generation=least, keep=True, timeout_s=1.0)
            taken += [(int(item.key), int(item.payload)) for item in items]
        return sorted(taken) if self.synchronous else taken

    def _ask(self, until: int, version: int) -> None:
        while self.asked < until:
            self.prompts.put(b"%d" % version, generation=max(version, 0), key=str(self.asked))
            self.asked += 1


def respond() -> None:
    """Answer numbers. Where there is a file `sleep-INDEX`, hang with what was taken until it is gone."""
    prompts, samples = roles.queue("prompts"), roles.queue("samples")
    sleep = Path(f"sleep-{roles.me().index}")
    roles.wait_ready("trainer")
    roles.ready()
    while True:
        for item in (items := prompts.take(2)):
            while sleep.exists():
                Path(f"sleeps-{roles.me().index}").touch()
                time.sleep(PAUSE_S)
            wanted = int(item.payload)
            version, weights = json.loads(Path("weights").read_text())
            while wanted > version:
                time.sleep(PAUSE_S / 4)
                version, weights = json.loads(Path("weights").read_text())
            if wanted not in (NEWEST, version):
                continue  # its step is over: who had it before us has answered, and had not yet said that it is done
            samples.put(b"%d" % answer(weights, int(item.key)), generation=version, key=item.key)
        prompts.done(*items)


def verify() -> None:
    """Pass answers on: what is right is decided by `is_right`."""
    samples, scored = roles.queue("samples"), roles.queue("scored")
    roles.ready()
    while True:
        items = samples.take(8)
        for item in items:
            scored.put(item.payload, generation=item.generation, key=item.key)
        samples.done(*items)


def main() -> None:
    """Do what this worker's role does, and note that it ran."""
    me = roles.me()
    Path(f"ran-{me.role}-{me.index}.{me.serial}.{me.attempt}-{os.getpid()}").touch()
    if me.role == "trainer":
        Trainer(synchronous=sys.argv[1] == "synchronous").run()
    elif me.role == "rollout":
        respond()
    else:
        verify()


if __name__ == "__main__":
    main()
