"""The role that responds to prompts, with the newest policy that the trainer has published."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import task
import torch
from model import GPT, sample
from samples import ANY_VERSION, Group, Prompt, Response, packed, prompt_of
from weights import Follower

from robust_run import roles

PROBLEM_TOKENS = 4
MOST_TOKENS = 4
"""A response that has not ended after so many is cut off."""
AT_ONCE = 8
"""Prompts that are responded to in one batch, where it may depend on chance which ones those are."""
LOOK_S = 0.005


def new_model() -> GPT:
    """Return a policy that knows nothing."""
    return GPT(len(task.LETTERS), PROBLEM_TOKENS + MOST_TOKENS)


def respond(model: GPT, prompts: Sequence[Prompt], version: int) -> list[Group]:
    """Try each problem as often as it asks. What is drawn follows from the seed, the prompts and the version alone."""
    texts = [task.problem(each.number, each.seed) for each in prompts]
    tokens = torch.tensor(
        [task.encode(text) for text, each in zip(texts, prompts, strict=True) for _ in range(each.group)]
    )
    chance = torch.Generator().manual_seed(seed_of(prompts[0], version))
    drawn, logs = (each.tolist() for each in sample(model, tokens, MOST_TOKENS, task.END, chance))
    found, at = [], 0
    for text, each in zip(texts, prompts, strict=True):
        rows = range(at, at + each.group)
        responses = tuple(cut(drawn[row], logs[row]) for row in rows)
        found.append(Group(each.number, version, text, responses))
        at += each.group
    return found


def seed_of(prompt: Prompt, version: int) -> int:
    """Return where chance begins for a prompt: the same wherever and however often it is responded to."""
    words = f"{prompt.seed}/{prompt.number}/{version}".encode()
    return int.from_bytes(hashlib.sha256(words).digest()[:8], "big") >> 1


def cut(tokens: list[int], logs: list[float]) -> Response:
    """Return a response up to its first end."""
    length = tokens.index(task.END) + 1 if task.END in tokens else len(tokens)
    return Response(tuple(tokens[:length]), tuple(logs[:length]))


def main() -> None:
    """Respond until the job is over: it ends this process."""
    prompts, samples = roles.queue("prompts"), roles.queue("samples")
    (trainer, *_) = roles.wait_ready("trainer")
    follower = Follower(new_model(), trainer.addresses[0])
    roles.ready()
    while True:
        items = prompts.take(AT_ONCE)
        asked = [prompt_of(item.payload) for item in items]
        version = follower.look()
        if asked[0].version == ANY_VERSION:
            groups = respond(follower.model, asked, version)
        else:  # one at a time: sums are not the same to the last bit in a batch of another size
            due = (each for each in asked if is_due(follower, each.version))
            groups = [respond(follower.model, [each], each.version)[0] for each in due]
        for group in groups:
            samples.put(packed(group), generation=group.version, key=str(group.number))
        prompts.done(*items)


def is_due(follower: Follower, version: int) -> bool:
    """Wait until this version is published. False: a later one is, so its step is over and the prompt has its response.

    That is so where a prompt was given to us because another was taken for dead that had responded, and not yet said so.
    """
    while (published := follower.look()) < version:
        time.sleep(LOOK_S)
    return published == version
