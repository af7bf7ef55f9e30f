"""Slurm's lists of hosts, `rr[1-2,004-006],login,gpu[0-1]-ib[0,1]`, without asking Slurm.

The grammar is that of `scontrol show hostnames`: names separated by commas, each with any number of bracket groups of numbers
and ranges. The width of a range's first number is the width of all in it (`[08-11]` is 08 09 10 11).
The last group counts fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from robust_run.errors import UserError

MOST_HOSTS = 100_000
"""More than any cluster has; a longer list is a mistake, or somebody's attempt to fill the memory."""
LONGEST_TEXT = 1 << 20

_PIECE = re.compile(r"\[([^][]*)\]|([^][]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_NAME = re.compile(r"[\w.:%-]+", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a list, in its order. Raises UserError for text that is no list, or one of too many hosts."""
    if len(text) > LONGEST_TEXT:
        raise UserError(f"the list of hosts has {len(text)} characters, at most {LONGEST_TEXT} are read")
    hosts: list[str] = []
    for part in _split(text):
        _add(hosts, part, text)
    return tuple(hosts)


def compress(names: Iterable[str]) -> str:
    """Return names as a list that `scontrol` takes. Brackets are not needed for that."""
    return ",".join(names)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise _no_list(text)
        if letter == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise _no_list(text)
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _add(hosts: list[str], part: str, text: str) -> None:
    pieces: list[list[str]] = []
    count = 1
    for group, plain in _PIECE.findall(part):
        if plain and not _NAME.fullmatch(plain):
            raise _no_list(text)
        piece = [plain] if plain else _numbers(group, text)
        count *= len(piece)
        if len(hosts) + count > MOST_HOSTS:
            raise UserError(f"the list of hosts {text[:80]!r} has more than {MOST_HOSTS} of them")
        pieces.append(piece)
    hosts.extend(map("".join, product(*pieces)))


def _numbers(group: str, text: str) -> list[str]:
    found: list[str] = []
    for item in group.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _no_list(text)
        first, last = match[1], match[2] or match[1]
        low, high = int(first), int(last)
        if high < low or high - low >= MOST_HOSTS or len(found) + high - low >= MOST_HOSTS:
            raise _no_list(text)
        found.extend(f"{number:0{len(first)}d}" for number in range(low, high + 1))
    return found


def _no_list(text: str) -> UserError:
    return UserError(
        f"{text[:80]!r} is no list of hosts as Slurm writes it, like node[01-04,7],login; check SLURM_*NODELIST"
    )
