"""T-PPO in a job of three roles: windows go round through the queues until their responses have ended.

A piece is a response as far as it has come. Its name in each queue is `NUMBER.PART`: the trainer answers each piece that it takes
with exactly one that it puts, the next part of the same response or the first of a new one. So as many stay on their way, however
often the trainer goes back to its checkpoint: what it puts again is known by its name.
"""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import strokes
import torch
from learner import SLOTS, WINDOW, Learner, new_model
from places import KEEP, Places
from weights import Follower, digest, publish, run_folder
from windows import Slot, Spent, go_on

from robust_run import checkpoint, report, roles

SEED = 0
EVERY = 50
"""So many steps, storage gets a checkpoint; memory has each."""
AT_ONCE = 16
"""Pieces that a rollout goes on with together."""
SMOOTH = 0.01
"""How much of the mean reward one finished response makes."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A response on its way, after `part` windows."""

    number: int
    part: int
    tokens: tuple[int, ...] = ()
    logs: tuple[float, ...] = ()
    begin: int = 0
    reward: float | None = None
    """None: it is not finished, or not verified yet."""

    @property
    def key(self) -> str:
        """Its name in each queue."""
        return f"{self.number}.{self.part}"

    def slot(self) -> Slot:
        """Return it as what a model goes on with."""
        return Slot(strokes.problem(self.number, SEED), list(self.tokens), list(self.logs), self.begin)

    def gone_on(self, slot: Slot) -> Piece:
        """Return it as it is after a window."""
        return Piece(self.number, self.part + 1, tuple(slot.tokens), tuple(slot.logs), slot.begin)


_pieces = msgspec.msgpack.Decoder(Piece)
_encoder = msgspec.msgpack.Encoder()


def roll_out() -> None:
    """Let pieces go on, with the newest policy, until the job is over: it ends this process."""
    prompts, samples = roles.queue("prompts"), roles.queue("samples")
    (trainer, *_) = roles.wait_ready("trainer")
    follower, chance = Follower(new_model(), trainer.addresses[0]), torch.Generator()
    chance.seed()
    roles.ready()
    while True:
        items = prompts.take(AT_ONCE)
        pieces = [_pieces.decode(item.payload) for item in items]
        slots = [each.slot() for each in pieces]
        version = follower.look()
        go_on(follower.model, slots, WINDOW, chance, Spent())
        for piece, slot in zip(pieces, slots, strict=True):
            after = piece.gone_on(slot)
            samples.put(_encoder.encode(after), generation=version, key=after.key)
        prompts.done(*items)


def verify() -> None:
    """Say what finished responses are worth, until the job is over: it ends this process."""
    samples, scored = roles.queue("samples"), roles.queue("scored")
    roles.ready()
    while True:
        items = samples.take(SLOTS)
        for item in items:
            piece = _pieces.decode(item.payload)
            piece = msgspec.structs.replace(piece, reward=piece.slot().reward)
            scored.put(_encoder.encode(piece), generation=item.generation, key=item.key)
        samples.done(*items)


class Trainer:
    """The policy on its way. What it keeps of a step is in one checkpoint with the queue's place."""

    def __init__(self, folder: str) -> None:
        self.folder, self.learner = folder, Learner(SEED)
        self.prompts, self.scored = roles.queue("prompts"), roles.queue("scored")
        self.state: dict[str, Any] = {
            "model": self.learner.model,
            "optimizer": self.learner.optimizer,
            "number": 0,
            "recent": 0.0,
            "queue": json.dumps(None),
        }
        self.places = Places(self.scored, self.state, self.checkpoints, EVERY)

    @property
    def checkpoints(self) -> str:
        """Where storage has them."""
        return os.path.join(self.folder, "checkpoints")

    def begin(self) -> int:
        """Go back to the newest checkpoint; return its step."""
        step = checkpoint.load(self.state, folder=self.checkpoints) or 0
        self.scored.load_state_dict(json.loads(self.state["queue"]))
        publish(self.learner.model, step, self.weights)
        roles.ready(self.weights)
        if not step:
            for _ in range(SLOTS):
                self._ask_new()
        return step

    @property
    def weights(self) -> str:
        """Where the policy is published."""
        return os.path.join(self.folder, "weights")

    def step(self, step: int) -> None:
        """Learn from as many windows as there are slots, and send each on its way."""
        pieces: list[Piece] = []
        while len(pieces) < SLOTS // 2:
            items = self.scored.take(SLOTS // 2 - len(pieces), keep=True)
            pieces += [_pieces.decode(item.payload) for item in items]
        for piece in pieces:
            if piece.reward is None:
                self.prompts.put(_encoder.encode(piece), key=piece.key)
            else:
                self.state["recent"] += SMOOTH * (piece.reward - self.state["recent"])
                self._ask_new()
        self.learner.learn([piece.slot() for piece in pieces])
        self.state["queue"] = json.dumps(self.scored.state_dict())
        self.places.note(step)
        self._record(step, pieces)
        checkpoint.save(self.state, step=step, folder=self.checkpoints, every=EVERY, keep=KEEP)
        self.places.release(step)
        publish(self.learner.model, step, self.weights)

    def _ask_new(self) -> None:
        piece = Piece(self.state["number"], 0)
        self.prompts.put(_encoder.encode(piece), key=piece.key)
        self.state["number"] += 1

    def _record(self, step: int, pieces: list[Piece]) -> None:
        line = {
            "step": step,
            "pid": os.getpid(),
            "reward": round(self.state["recent"], 4),
            "tokens": sum(len(each.tokens) - each.begin for each in pieces),
            "trained": [each.key for each in pieces],
        }
        with open(os.path.join(self.folder, "trained.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def train(folder: str, target: float, most_steps: int) -> None:
    """Train until the mean reward is reached, or for so many steps."""
    trainer = Trainer(folder)
    step = trainer.begin()
    print(f"trainer {os.getpid()} begins after step {step}", flush=True)
    while step < most_steps and trainer.state["recent"] < target:
        step += 1
        trainer.step(step)
        report(step=step, loss=1 - trainer.state["recent"])
        if step % 20 == 0 or step == 1:
            print(f"step {step}  mean reward {trainer.state['recent']:.3f}", flush=True)
    final = {
        "step": step,
        "reward": trainer.state["recent"],
        "pid": os.getpid(),
        "weights_sha256": digest(trainer.learner.model),
    }
    with open(os.path.join(folder, "final.json"), "w", encoding="utf-8") as file:
        json.dump(final, file)
    print(f"ends after step {step}  mean reward {final['reward']:.3f}", flush=True)


def main(role: str, target: float, most_steps: int) -> None:
    """Do what this worker's role does."""
    if role == "trainer":
        train(run_folder(), target, most_steps)
    elif role == "rollout":
        roll_out()
    else:
        verify()
