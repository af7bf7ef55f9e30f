"""What a queue need not keep any more: where it was at each checkpoint in storage, until no trainer goes back to before it.

A trainer starts from memory, which has its last steps, or from the newest checkpoint that storage has whole. `KEEP` of those
stay, so that one may be damaged. What was trained on before the oldest of them is never asked for again, and the queue lets go of
it: else a long training fills it with what it has learned from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from robust_run.ckpt_io import catalog
from robust_run.errors import RobustRunError
from robust_run.roles import Queue

KEEP = 2
"""Checkpoints that stay in storage."""


def oldest_needed(steps: Iterable[int], keep: int = KEEP) -> int:
    """Return the oldest step that a trainer may go back to, of those that storage has whole; 0: to the beginning."""
    found = sorted(set(steps))
    return found[-keep] if len(found) >= keep else 0


def whole(folder: str) -> list[int]:
    """Return the steps that storage has whole; none where that cannot be told now."""
    with suppress(RobustRunError, OSError):
        found = catalog.list_checkpoints(folder)
        return [each.step for each in found if each.state == "valid" and each.step is not None]
    return []


class Places:
    """Of one queue. `state`: what goes into each checkpoint; in it, the key `places` is ours."""

    def __init__(self, queue: Queue, state: dict[str, Any], folder: str, every: int) -> None:
        """`every`: so many steps, storage gets a checkpoint."""
        self._queue, self._state, self._folder, self._every = queue, state, folder, every
        state["places"] = json.dumps({})

    def note(self, step: int) -> None:
        """Before a step is saved: note where the queue is, if storage gets it."""
        if step % self._every == 0:
            places = json.loads(self._state["places"])
            self._state["places"] = json.dumps({**places, str(step): self._queue.state_dict()})

    def release(self, step: int) -> None:
        """After it was saved: let the queue forget what no checkpoint goes back to."""
        if step % self._every:
            return
        places = json.loads(self._state["places"])
        needed = oldest_needed(whole(self._folder))
        passed = sorted(int(each) for each in places if int(each) <= needed)
        for each in passed[-1:]:  # what it has, the ones before it have too
            self._queue.release(places[str(each)])
        self._state["places"] = json.dumps({each: place for each, place in places.items() if int(each) > needed})
