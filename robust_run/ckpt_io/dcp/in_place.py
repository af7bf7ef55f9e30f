"""Objects loaded under the very keys of a state dict. torch makes text of all keys, and would put an object beside its place."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem


class Places:
    """Where torch's paths lead in a state dict. Its dicts and lists must stay in it: they are known by their ids."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._state = state
        self._keys: dict[int, dict[str, list[Any]]] = {}
        """Of each dict, by what torch makes of them: one look at all keys, for there may be many."""

    def find(self, path: Sequence[str | int]) -> tuple[Any, Any] | None:
        """Return the dict or list that a path ends in, and the key or position there; None: it leads nowhere."""
        return self._find(self._state, path) if path else None

    def _find(self, place: Any, path: Sequence[str | int]) -> tuple[Any, Any] | None:
        for key in self._keys_of(place, path[0]):
            found = (place, key) if len(path) == 1 else self._find(place[key], path[1:])
            if found is not None:
                return found
        return None

    def _keys_of(self, place: Any, step: str | int) -> Sequence[Any]:
        """Return what may be meant: of `{1: {"a": 0}, "1": {"b": 0}}` both keys are `1` in torch's paths."""
        if isinstance(step, int):
            return (step,) if isinstance(place, list) and step < len(place) else ()
        if not isinstance(place, Mapping):
            return ()
        if id(place) not in self._keys:
            keys = self._keys[id(place)] = {}
            for key in place:
                keys.setdefault(str(key), []).append(key)
        return self._keys[id(place)].get(step, ())


class InPlacePlanner(DefaultLoadPlanner):  # type: ignore[misc,unused-ignore]
    """torch's planner, by which `{True: 0}` does not become `{True: 0, "True": 3}`."""

    def set_up_planner(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Begin a load."""
        super().set_up_planner(state_dict, *args, **kwargs)
        self._places = Places(self.original_state_dict)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object where the state dict has one."""
        found = self._places.find(self.mappings.get(read_item.dest_index.fqn, ()))
        if found is None:
            super().load_bytes(read_item, value)
        else:
            place, key = found
            place[key] = torch.load(value, weights_only=False)  # the reader has vouched for it
