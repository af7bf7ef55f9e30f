"""The shape of a detector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Distances, Fleet, Reading

State = TypeVar("State")


class Detector(Protocol[State]):
    """Says of each reading how far every machine is from its peers. Pure: state in, state out, no clock, no randomness."""

    name: str

    def begin(self, fleet: Fleet) -> State:
        """Return the state before the first reading."""
        ...

    def step(self, state: State, fleet: Fleet, reading: Reading) -> tuple[State, Distances]:
        """Return the next state, and the distances of this reading."""
        ...
