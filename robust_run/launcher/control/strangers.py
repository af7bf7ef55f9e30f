"""Connections that have not proven themselves: who has to go when there are too many. Pure.

A controller's port may be reached by many who have no business there. How it tells them from its agents: an agent speaks at
once, and has proven itself moments later. What looks the same is an agent that a busy machine holds up, and ten thousand of
them that dial at once; so each has a fair time before it may be sent away, an address with many strangers is asked before one
with few, and who is sent away may dial again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_Stranger = TypeVar("_Stranger")


class Strangers(Generic[_Stranger]):
    """Strangers by address, the oldest of each first."""

    def __init__(self) -> None:
        self._at: dict[_Stranger, str] = {}
        self._of: dict[str, dict[_Stranger, None]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, stranger: _Stranger) -> bool:
        return stranger in self._at

    def add(self, stranger: _Stranger, address: str) -> None:
        """Take in one that comes from this address."""
        self._at[stranger] = address
        self._of.setdefault(address, {})[stranger] = None

    def remove(self, stranger: _Stranger) -> None:
        """Forget one that has proven itself, or is gone."""
        address = self._at.pop(stranger)
        there = self._of[address]
        del there[stranger]
        if not there:
            del self._of[address]

    def first_to_go(self) -> _Stranger:
        """Return the oldest of the address that has most; of addresses with as many, of the one that came first."""
        crowd = max(self._of.values(), key=len)
        return next(iter(crowd))

    def all(self) -> tuple[_Stranger, ...]:
        """Return all, the oldest first."""
        return tuple(self._at)
