"""What comes next in a stream that repeats itself: the longest context that was seen before tells.

Training programs make the same calls every step, so what followed the last 16 calls the last time is what should follow now.
This is prediction by the longest matching context (as in Lempel-Ziv and PPM coders), over calls instead of letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Token = TypeVar("Token")
CONTEXT = 16


def following(context: Sequence[Token], sources: Sequence[Sequence[Token]], count: int) -> list[Token]:
    """Return up to `count` tokens that should follow the context, as the sources say; fewer where they say nothing."""
    known = list(context[-CONTEXT:])
    found: list[Token] = []
    for _ in range(count):
        nxt = _next(known, sources)
        if nxt is None:
            break
        found.append(nxt[0])
        known = [*known, nxt[0]][-CONTEXT:]
    return found


def _next(context: list[Token], sources: Sequence[Sequence[Token]]) -> tuple[Token] | None:
    """Return what followed the longest possible end of the context, in the newest place of the first source that has it."""
    best = 0
    found: tuple[Token] | None = None
    for source in sources:
        for position in range(len(source) - 1, 0, -1):
            length = _common(context, source, position)
            if length > best:
                best, found = length, (source[position],)
    return found


def _common(context: list[Token], source: Sequence[Token], position: int) -> int:
    """Return how many tokens before the position equal the end of the context."""
    length = 0
    while length < min(len(context), position) and context[-1 - length] == source[position - 1 - length]:
        length += 1
    return length
