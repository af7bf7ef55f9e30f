"""Which steps all nodes of an attempt keep in memory, and copy: those of the one that needs the largest strides. Pure.

Why they must be the same is `ckpt_io.memory.pace`'s to say. Nothing waits for it: a node goes by its own until it is told more.
A node that is not heard of has said all that counts; one that is lost ends the attempt, and the next begins anew.

Imported where a node needs more than every step.
"""

from __future__ import annotations

from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Action
from robust_run.launcher.model.resume_events import MemoryNeeds, MemoryStrides


def take(state: JobState, event: MemoryNeeds) -> list[Action]:
    """Take in what a node needs, and tell all nodes if it changes what they go by."""
    if event.attempt != state.attempt or event.node not in state.places or min(event.keeps, event.copies) < 1:
        return []
    state.memory_needs[event.node] = event.keeps, event.copies
    if state.phase not in ("running", "suspecting", "opening") or largest(state) == state.memory_strides:
        return []
    state.memory_strides = largest(state)
    return [_told(state, tuple(each.node for each in state.layout))]


def again(state: JobState, node: str) -> list[Action]:
    """Return the same for a node that may have missed it."""
    return [_told(state, (node,))] if state.memory_strides != (1, 1) else []


def largest(state: JobState) -> tuple[int, int]:
    """Return the strides that no node of the attempt is too slow for. What is not kept cannot be copied."""
    needs = [state.memory_needs.get(each.node, (1, 1)) for each in state.layout]
    keeps = max((each for each, _ in needs), default=1)
    return keeps, max(keeps, *(each for _, each in needs)) if needs else keeps


def _told(state: JobState, nodes: tuple[str, ...]) -> MemoryStrides:
    keeps, copies = state.memory_strides
    return MemoryStrides(attempt=state.attempt, nodes=nodes, keeps=keeps, copies=copies)
