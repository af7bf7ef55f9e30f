"""Answers requests, two micro-batches in turn: while the experts work on one, attention computes the other (ping-pong)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from decoder import CONTEXT, LAYERS, START, AttentionPart, Cache, by_expert, combined, decode, encode
from exact import Array
from words import Answer, Request

MICRO_BATCHES = 2
ROOM = 4
"""Sequences of a micro-batch."""
LOOK_EVERY = 8
"""Steps after which a micro-batch that has room looks for more requests."""


class Asks(Protocol):
    """Who has experts: `links.Experts`, or a test."""

    async def ask(self, layer: int, rows: dict[int, Array]) -> tuple[dict[int, Array], int]:
        """Return what experts of a layer made of rows, and how often some were asked again."""
        ...


class Sequence:
    """A request on its way."""

    def __init__(self, request: Request, done: Callable[[Answer], Awaitable[None]]) -> None:
        """Raises ValueError, with a sentence, for a request that cannot be answered."""
        try:
            self.tokens = [START, *encode(request.prompt)]
        except ValueError:
            raise ValueError(f"the prompt has letters that the model has not: {request.prompt[:40]!r}") from None
        if request.most < 1:
            raise ValueError(f"an answer of {request.most} letters was asked for; 1 is the least")
        if len(self.tokens) + request.most > CONTEXT:
            raise ValueError(
                f"a prompt of {len(request.prompt)} letters and an answer of {request.most} are more than the {CONTEXT - 1}"
                " that there is room for"
            )
        self.request, self.done, self.cache = request, done, Cache()
        self.longest_wait_s, self.asked_again = 0.0, 0
        self._digest = hashlib.sha256()

    @property
    def next_token(self) -> int:
        """The one that is to be looked at: of the prompt, then of the answer."""
        return self.tokens[self.cache.length]

    @property
    def made(self) -> list[int]:
        """Tokens of the answer so far."""
        return self.tokens[1 + len(self.request.prompt) :]

    def take(self, logits: Array) -> bool:
        """Take in what comes after the last token that was looked at; return whether the answer is whole."""
        self.cache.length += 1
        if self.cache.length < len(self.tokens):
            return False  # still in the prompt
        self._digest.update(logits.tobytes())
        self.tokens.append(int(logits.argmax()))
        return self.tokens[-1] == START or len(self.made) == self.request.most

    def answer(self, by: str) -> Answer:
        """Return what came of it."""
        text, digest = decode(self.made).rstrip("\n"), self._digest.hexdigest()
        return Answer(
            self.request.number, text, digest, len(self.made), by, round(self.longest_wait_s, 4), self.asked_again
        )


class Engine:
    """One attention member's work. `take`: waits for requests, at most so many, and not at all where it is told not to."""

    def __init__(self, me: str, experts: Asks, take: Callable[[int, bool], Awaitable[list[Sequence]]]) -> None:
        self._me, self._experts, self._take = me, experts, take
        self._part = AttentionPart()
        self._with_experts: set[int] = set()
        self.steps = 0
        """Times that attention computed a layer of a micro-batch."""
        self.overlapped = 0
        """Those at which the experts had the other micro-batch meanwhile."""

    async def run(self) -> None:
        """Answer requests, for ever."""
        await asyncio.gather(*(self._turn(number) for number in range(MICRO_BATCHES)))

    async def _turn(self, number: int) -> None:
        """Be one of the micro-batches: each of its steps looks at one token of each of its sequences."""
        batch: list[Sequence] = []
        step = 0
        while True:
            if len(batch) < ROOM and (not batch or step % LOOK_EVERY == 0):
                batch += await self._take(ROOM - len(batch), not batch)
            step += 1
            logits = await self._step(number, batch)
            whole = [each for each, row in zip(batch, logits, strict=True) if each.take(row)]
            batch = [each for each in batch if each not in whole]
            for each in whole:
                await each.done(each.answer(self._me))

    async def _step(self, number: int, batch: list[Sequence]) -> Array:
        caches = [each.cache for each in batch]
        rows = self._part.embed([each.next_token for each in batch], caches)
        for layer in range(LAYERS):
            self.steps += 1
            self.overlapped += bool(self._with_experts - {number})
            rows = self._part.attend(layer, rows, caches)
            given, chosen, shares = self._part.gate(layer, rows)
            made = await self._ask(number, batch, layer, {e: given[n] for e, n in by_expert(chosen).items()})
            rows = combined(rows, chosen, shares, made)
        return self._part.logits(rows)

    async def _ask(self, number: int, batch: list[Sequence], layer: int, rows: dict[int, Array]) -> dict[int, Array]:
        began_s = asyncio.get_running_loop().time()
        self._with_experts.add(number)
        try:
            made, again = await self._experts.ask(layer, rows)
        finally:
            self._with_experts.discard(number)
        waited_s = asyncio.get_running_loop().time() - began_s
        for each in batch:
            each.longest_wait_s = max(each.longest_wait_s, waited_s)
            each.asked_again += again
        return made
