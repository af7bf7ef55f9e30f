"""The role that trains: asks for responses, takes verified ones, improves the policy, publishes it. Each step is in a checkpoint.

It may be killed at any time. Its checkpoint has the weights, how far it has asked, and which items of the queue were trained on:
the queue gives the others again. Prompts that it puts once more are known by their numbers, and count once.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, NamedTuple

import torch
from batch import Batch, tensors_of
from objective import loss
from places import KEEP, Places
from rollout import PROBLEM_TOKENS, new_model
from samples import ANY_VERSION, Prompt, group_of, packed
from torch.nn import functional
from weights import digest, publish

from robust_run import checkpoint, report, roles


class Settings(NamedTuple):
    """How it trains."""

    synchronous: bool = False
    steps: int = 2000
    target: float = 0.9
    """Mean reward at which it is done."""
    group: int = 16
    useful: int = 16
    """Groups with something to learn from in each step."""
    in_flight: int = 64
    """Problems that are asked for and not settled; of a synchronous step: those of a round."""
    stale: int = 4
    """Responses by a policy that is more steps old are refused."""
    minibatches: int = 2
    rate: float = 1e-3
    seed: int = 0
    every: int = 50
    """So many steps, storage gets a checkpoint; memory has each."""


class Trainer:
    """A policy on its way. `folder`: of the run, where weights, checkpoints and the record lie."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self.settings, self.folder = settings, folder
        torch.manual_seed(settings.seed)
        self.model = new_model()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.prompts, self.scored = roles.queue("prompts"), roles.queue("scored")
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "asked": 0,
            "settled": 0,
            "recent": 0.0,
            "queue": json.dumps(None),
        }
        self.places = Places(self.scored, self.state, self.checkpoints, settings.every)

    @property
    def checkpoints(self) -> str:
        """Where storage has them."""
        return os.path.join(self.folder, "checkpoints")

    @property
    def weights(self) -> str:
        """Where the policy is published."""
        return os.path.join(self.folder, "weights")

    def begin(self) -> int:
        """Go back to the newest checkpoint, and say so; return its step."""
        step = checkpoint.load(self.state, folder=self.checkpoints) or 0
        self.scored.load_state_dict(json.loads(self.state["queue"]))
        publish(self.model, step, self.weights)
        roles.ready(self.weights)
        return step

    def step(self, step: int) -> Batch:
        """Make one step: `step` counts from 1, and is the version of the policy that comes of it."""
        batch = self._synchronous(step - 1) if self.settings.synchronous else self._asynchronous(step - 1)
        self._learn(batch)
        self.state["recent"] = 0.9 * self.state["recent"] + 0.1 * batch.reward if step > 1 else batch.reward
        self.state["queue"] = json.dumps(self.scored.state_dict())
        self.places.note(step)
        self._record(step, batch)
        checkpoint.save(self.state, step=step, folder=self.checkpoints, every=self.settings.every, keep=KEEP)
        self.places.release(step)
        publish(self.model, step, self.weights)
        return batch

    def _asynchronous(self, version: int) -> Batch:
        """Take groups as they come, unless their policy is too old."""
        batch = Batch(self.settings.useful)
        while batch.missing:
            refused = self.scored.counts().stale
            self._ask(self.state["settled"] + refused + self.settings.in_flight, ANY_VERSION)
            least = max(version - self.settings.stale, 0)
            for item in self.scored.take(batch.missing, least_generation=least, keep=True, timeout_s=1.0):
                batch.add(group_of(item.payload))
                self.state["settled"] += 1
        return batch

    def _synchronous(self, version: int) -> Batch:
        """Ask for whole rounds by this version, and take all of each, in the order of their numbers."""
        batch = Batch(self.settings.useful)
        while batch.missing:
            self._ask(self.state["settled"] + self.settings.in_flight, version)
            groups = []
            while len(groups) < self.settings.in_flight:
                items = self.scored.take(self.settings.in_flight - len(groups), keep=True)
                groups += [group_of(item.payload) for item in items]
            for group in sorted(groups, key=lambda each: each.number):
                batch.add(group)
            self.state["settled"] += len(groups)
        return batch

    def _ask(self, until: int, version: int) -> None:
        for number in range(self.state["asked"], until):
            prompt = Prompt(number, self.settings.seed, self.settings.group, version)
            self.prompts.put(packed(prompt), generation=max(version, 0), key=str(number))
            self.state["asked"] = number + 1

    def _learn(self, batch: Batch) -> None:
        parts = tensors_of(batch.useful)
        for problems, responses, old, gains, mask in zip(
            *(each.chunk(self.settings.minibatches) for each in parts), strict=True
        ):
            logits = self.model(torch.cat([problems, responses], dim=1)[:, :-1])[:, PROBLEM_TOKENS - 1 :]
            new = functional.log_softmax(logits, dim=-1).gather(2, responses[..., None]).squeeze(2)
            self.optimizer.zero_grad()
            loss(new, old, gains, mask).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    def _record(self, step: int, batch: Batch) -> None:
        """Write down what became of problems: of a step that is made again, the last line counts."""
        line = {
            "step": step,
            "pid": os.getpid(),
            "at_s": time.time(),
            "reward": round(batch.reward, 4),
            "tokens": batch.tokens,
            **batch.fates(),
        }
        with open(os.path.join(self.folder, "trained.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main(settings: Settings, folder: str) -> None:
    """Train until the reward is reached, or for so many steps."""
    trainer = Trainer(settings, folder)
    step = trainer.begin()
    print(f"trainer {os.getpid()} begins after step {step}", flush=True)
    while step < settings.steps and (step < 20 or trainer.state["recent"] < settings.target):
        step += 1
        batch = trainer.step(step)
        report(step=step, loss=1 - batch.reward)
        if step % 10 == 0 or step == 1:
            print(f"step {step}  reward {batch.reward:.3f}  mean {trainer.state['recent']:.3f}", flush=True)
    final = {
        "step": step,
        "reward": trainer.state["recent"],
        "pid": os.getpid(),
        "weights_sha256": digest(trainer.model),
        "asked": trainer.state["asked"],
        "in_flight": settings.in_flight,
        "refused": trainer.scored.counts().stale,
        "kept": trainer.scored.counts().kept,
    }
    with open(os.path.join(folder, "final.json"), "w", encoding="utf-8") as file:
        json.dump(final, file)
    print(f"ends after step {step}  reward {final['reward']:.3f}  weights {final['weights_sha256']}", flush=True)
