"""A worker's view of a work queue.

    prompts = roles.queue("prompts")
    for item in prompts.take(4):                 # leased to this worker: given to another if it dies
        ...
        samples.put(result, generation=item.generation, key=item.key)
        prompts.done(item)

A trainer that goes back to checkpoints takes with `keep=True`, and saves `queue.state_dict()` with its weights. What
`load_state_dict` finds in a checkpoint was trained on and is not given again; what was taken later is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.roles.client import Client
from robust_run.roles.queue_words import (
    MOST_ITEM_BYTES,
    Counts,
    Done,
    GiveBack,
    Item,
    Keep,
    Position,
    Put,
    QueueEvent,
    Release,
    Renew,
    Restore,
    Took,
)
from robust_run.roles.words import Answer, PositionCall, QueueCall

#: One request waits no longer; a longer wait is several.
SLICE_S = 20.0


class Queue:
    """One queue, by name. All methods may be called from any thread."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def holds(self) -> tuple[int, ...]:
        """Return the numbers of items that this worker works on."""
        return self._client.holds(self.name)

    def put(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        generation: int = 0,
        key: str = "",
        timeout_s: float | None = None,
    ) -> bool:
        """Put an item; wait while the queue is full. False: it was full for `timeout_s`.

        `key`: an item whose key the queue has or had is not taken in again, so that work that was given to two workers counts
        once. Raises UserError for an item that is no bytes or too large, and for a generation or key that cannot be kept.
        """
        data = _as_bytes(payload, self.name)
        if not -(1 << 63) <= generation < 1 << 63:
            raise UserError(f"generation {generation} of an item for the queue {self.name}; 64 bits are possible")
        if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
            raise UserError(f"the key {key!r} of an item for the queue {self.name} is no text: it has half a character")
        if len(data) > MOST_ITEM_BYTES:
            raise UserError(
                f"an item of {len(data)} bytes is larger than {MOST_ITEM_BYTES}; put it into a file, and its path"
                f" into the queue {self.name}"
            )
        if not key:
            me = self._client.me
            # A request that is sent again, because its answer was lost, counts once.
            key = f"\0{me.consumer}.{me.serial}.{me.attempt}.{self._client.number()}"
        event = Put(key=key, generation=generation, payload=data)
        return any(answer.accepted for answer in self._until(event, timeout_s))

    def take(
        self, count: int = 1, *, least_generation: int = 0, keep: bool = False, timeout_s: float | None = None
    ) -> list[Item]:
        """Take the oldest items, at least one and at most `count`; none: there was none for `timeout_s`.

        Items of a generation below `least_generation` are dropped and counted. `keep`: they are kept at once, as `keep` does.
        """
        if count < 1:
            raise UserError(f"the queue {self.name} was asked for {count} items; 1 is the least")
        event = Took(consumer="", count=count, least=least_generation)
        for answer in self._until(event, timeout_s):
            if answer.items:
                lost = self.keep(answer.items) if keep else ()
                if len(lost) < len(answer.items):
                    return [item for item in answer.items if item.number not in lost]
        return []

    def done(self, *items: Item) -> list[int]:
        """Say that items were worked on, for good. Returns the numbers of those that were given to another meanwhile."""
        return self._settle(Done(consumer="", numbers=_numbers(items)))

    def keep(self, items: Iterable[Item]) -> list[int]:
        """Say that items were worked on, unless this worker goes back to a checkpoint from before. Returns as `done`."""
        return self._settle(Keep(consumer="", numbers=_numbers(items)))

    def give_back(self, *items: Item) -> None:
        """Say that this worker will not work on items."""
        self._settle(GiveBack(consumer="", numbers=_numbers(items)))

    def renew(self) -> None:
        """Say that this worker still works on all that it holds."""
        self._ask(Renew(consumer=""))

    def state_dict(self) -> dict[str, object]:
        """Return what this worker has kept, for its checkpoint."""
        found = self._client.ask(PositionCall(number=self._client.number(), queue=self.name)).position or Position()
        return {"queue": self.name, "of": found.of, "through": found.through, "beyond": list(found.beyond)}

    def load_state_dict(self, state: dict[str, object] | None) -> None:
        """Go back to a checkpoint; None: to the beginning. What was kept since is given again, to whoever takes it.

        A checkpoint of another run has nothing of this run's queue: then this is the beginning. Raises UserError for what is no
        state of a queue.
        """
        self._ask(Restore(consumer="", position=self._position(state)))

    def release(self, state: dict[str, object]) -> None:
        """Say that no worker will go back to before a checkpoint: what it has need not be kept any more."""
        self._ask(Release(position=self._position(state)))

    def counts(self) -> Counts:
        """Return how full the queue is, and what it has done."""
        return self._client.ask(PositionCall(number=self._client.number(), queue=self.name)).counts or Counts()

    def _position(self, state: dict[str, object] | None) -> Position:
        if state is None:
            return Position()
        through, beyond, of = state.get("through"), state.get("beyond"), state.get("of")
        numbers = beyond if isinstance(beyond, (list, tuple)) else [None]
        is_whole = isinstance(through, int) and isinstance(of, str) and all(isinstance(each, int) for each in numbers)
        if state.get("queue") != self.name or not is_whole:
            raise UserError(f"what was saved is no state of the queue {self.name}: {str(state)[:200]}")
        return msgspec.convert({"through": through, "beyond": numbers, "of": of}, Position)

    def _settle(self, event: Done | Keep | GiveBack) -> list[int]:
        return list(self._ask(event).lost) if event.numbers else []

    def _ask(self, event: QueueEvent, wait_s: float = 0.0) -> Answer:
        return self._client.ask(QueueCall(number=self._client.number(), queue=self.name, event=event, wait_s=wait_s))

    def _until(self, event: Put | Took, timeout_s: float | None) -> Iterable[Answer]:
        """Ask until there is no time left, and at least once."""
        left_s = float("inf") if timeout_s is None else timeout_s
        while True:
            answer = self._ask(event, min(left_s, SLICE_S))
            yield answer
            left_s -= SLICE_S
            if answer.accepted and (answer.items or isinstance(event, Put)):
                return
            if left_s <= 0:
                return


def _numbers(items: Iterable[Item] | Sequence[Item]) -> tuple[int, ...]:
    return tuple(item.number for item in items)


def _as_bytes(payload: object, queue: str) -> bytes:
    """Return what is put. `bytes()` would make something else of lists, numbers and tensors, without a word."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise UserError(
        f"an item for the queue {queue} is of type {type(payload).__name__}, not bytes: encode it, "
        "for example json.dumps(item).encode(), or numpy's tobytes()"
    )
