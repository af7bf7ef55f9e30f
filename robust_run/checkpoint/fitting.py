"""From saved nodes back into the objects of a program: first what goes where is found, and only then anything is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from robust_run.checkpoint.gathering import has_state
from robust_run.checkpoint.layouts import alias_key, fresh, is_spread, repeats
from robust_run.checkpoint.rules.tree import (
    DICT,
    LIST,
    OBJECT,
    TENSOR,
    TUPLE,
    Node,
    Path,
    kind_of,
    pairs,
    shown,
    tensors_in,
    unpack,
)
from robust_run.checkpoint.types import Values
from robust_run.errors import UserError

_ABSENT = object()


class Fitting:
    """A saved state beside the one that it is loaded into.

    `targets` are the tensors to fill, by position; then `settle` hands over all the rest.

    Raises:
        UserError: The two do not fit; nothing was touched.
    """

    def __init__(self, values: Values, state: dict[str, Any]) -> None:
        self._values = values
        self._state = state
        asked = [(key, node) for key, node in pairs(values.tree) if key in state]
        self._tree: Node = [DICT, *(each for pair in asked for each in pair)]
        """Of what the state has no key for, nothing is loaded."""
        self._live: dict[int, list[torch.Tensor]] = {}
        self._like: dict[int, torch.Tensor] = {}
        self._spread: list[torch.Tensor] = []
        self._dicts: dict[int, dict[str, Any]] = {}
        """State dicts of modules, whose tensors are the modules' own."""
        self._wanted: dict[int, None] = {}
        with torch.no_grad():
            self._look(state, self._tree, ())
            self._refuse_new_ties()
            self.targets = {number: self._target(number) for number in self._wanted}

    def settle(self) -> None:
        """Hand over what is no tensor, once all targets are filled."""
        with torch.no_grad():
            for number, places in self._live.items():
                for place in places:
                    if repeats(place):
                        _put_once(place, self.targets[number], self._values.tensors[number].name)
                    elif place is not places[0] and alias_key(place) != alias_key(places[0]):
                        place.copy_(self.targets[number])
        self._put(self._state, self._tree)

    # --- looking

    def _look(self, live: Any, node: Node, path: Path) -> None:
        kind = kind_of(node)
        if has_state(live) and kind in (OBJECT, DICT):
            self._look_at_object(live, _state_in(node), path)
        elif isinstance(live, torch.Tensor) and kind == TENSOR:
            self._look_at_tensor(live, node[1], path)
        elif has_state(live) or isinstance(live, torch.Tensor) or (kind == OBJECT and live is not _ABSENT):
            raise UserError(
                f"{shown(path)} is a {type(live).__name__}, and was saved as {_WORDS.get(kind, 'a plain value')}"
            )
        elif isinstance(live, dict) and kind == DICT:
            self._look_at_dict(live, node, path)
        elif isinstance(live, (list, tuple)) and kind in (LIST, TUPLE) and len(live) == len(node) - 1:
            for at, (inner, saved) in enumerate(zip(live, node[1:], strict=True)):
                self._look(inner, saved, (*path, at))
        elif kind != OBJECT:
            if first := next(_things_in(live, path), None):
                raise UserError(
                    f"{shown(first)} is not in the checkpoint, which has {_WORDS.get(kind, 'a plain value')} there"
                )
            self._wanted.update(dict.fromkeys(tensors_in(node)))

    def _look_at_object(self, live: Any, node: Node, path: Path) -> None:
        if isinstance(live, torch.nn.Module):
            self._dicts[id(live)] = live.state_dict()
            self._look(self._dicts[id(live)], node, path)
            return
        if isinstance(live, torch.optim.Optimizer):
            self._like.update(_like_parameters(live, node))
        self._wanted.update(dict.fromkeys(tensors_in(node)))

    def _look_at_dict(self, live: dict[Any, Any], node: Node, path: Path) -> None:
        saved = dict(pairs(node))
        for key, inner in live.items():
            if key not in saved and (first := next(_things_in(inner, (*path, key)), None)):
                raise UserError(f"{shown(first)} is not in the checkpoint: it was saved without")
        for key, inner in saved.items():
            self._look(live.get(key, _ABSENT), inner, (*path, key))

    def _look_at_tensor(self, live: torch.Tensor, number: int, path: Path) -> None:
        shape = self._values.tensors[number].shape
        if tuple(live.shape) != shape:
            raise UserError(f"{shown(path)} has shape {tuple(live.shape)}, and was saved with {shape}")
        self._wanted[number] = None
        self._live.setdefault(number, []).append(live.detach())
        if is_spread(live):
            self._spread.append(live)

    def _refuse_new_ties(self) -> None:
        seen: dict[tuple[object, ...], int] = {}
        for number, places in self._live.items():
            for place in places:
                other = seen.setdefault(alias_key(place), number) if place.numel() else number
                if other != number:
                    names = [self._values.tensors[each].name for each in (other, number)]
                    raise UserError(f"{names[0]} and {names[1]} are one tensor, and were two when they were saved")

    def _target(self, number: int) -> torch.Tensor:
        if places := self._live.get(number):
            return torch.empty_like(places[0]) if repeats(places[0]) else places[0]
        return fresh(self._values.tensors[number], self._like.get(number), self._spread)

    # --- handing over

    def _put(self, live: Any, node: Node) -> Any:
        """Return what is to stand in the place of `live`: itself, wherever it can be changed in place."""
        kind = kind_of(node)
        if kind in (OBJECT, DICT) and has_state(live):
            said, node = self._dicts.get(id(live)), _state_in(node)
            live.load_state_dict(unpack(node, self._tensor) if said is None else self._put(said, node))
            return live
        if kind == TENSOR and isinstance(live, torch.Tensor):
            return live
        if kind == DICT and isinstance(live, dict):
            for key, inner in pairs(node):
                if key in live or kind_of(inner) != OBJECT:
                    live[key] = self._put(live.get(key, _ABSENT), inner)
            return live
        if kind in (LIST, TUPLE) and isinstance(live, (list, tuple)) and len(live) == len(node) - 1:
            inner = [self._put(each, saved) for each, saved in zip(live, node[1:], strict=True)]
            if kind == LIST and isinstance(live, list):
                live[:] = inner
                return live
            return inner if kind == LIST else tuple(inner)
        return unpack(node, self._tensor)

    def _tensor(self, number: int) -> torch.Tensor:
        return self.targets[number]


_WORDS = {OBJECT: "an object's state", TENSOR: "a tensor", DICT: "a dict", LIST: "a list", TUPLE: "a tuple"}


def _put_once(place: torch.Tensor, values: torch.Tensor, name: str) -> None:
    """Copy into a tensor that repeats its elements, as `expand` makes it: torch refuses to write one of them twice."""
    once, first = place, values
    for dimension, (size, stride) in enumerate(zip(place.shape, place.stride(), strict=True)):
        if size > 1 and stride == 0:
            once, first = once.narrow(dimension, 0, 1), first.narrow(dimension, 0, 1)
    as_bytes = [each.contiguous().view(torch.uint8) for each in (first.expand_as(values), values)]
    if not torch.equal(*as_bytes):  # bit by bit, for no NaN is equal to itself
        raise UserError(
            f"{name} repeats its elements in this program (expand), and was saved with others: clone it before it is loaded"
        )
    once.copy_(first)


def _state_in(node: Node) -> Node:
    """Return the state dict of an object, which may have been saved as one: torch's own saves take objects apart before ours."""
    return node[1] if kind_of(node) == OBJECT else node


def _things_in(live: Any, path: Path) -> Iterator[Path]:
    """Yield where there are tensors and objects: what a load must not leave as it is."""
    if isinstance(live, torch.Tensor) or has_state(live):
        yield path
    elif isinstance(live, dict):
        for key, inner in live.items():
            yield from _things_in(inner, (*path, key))
    elif isinstance(live, (list, tuple)):
        for at, inner in enumerate(live):
            yield from _things_in(inner, (*path, at))


def _like_parameters(optimizer: torch.optim.Optimizer, node: Node) -> dict[int, torch.Tensor]:
    """Return the parameters that an optimizer's tensors belong to: they are spread alike."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    saved: dict[str | int, Node] = dict(pairs(node)) if kind_of(node) == DICT else {}
    if kind_of(saved.get("state")) != DICT:
        return {}
    by_number = [
        (key, inner) for key, inner in pairs(saved["state"]) if isinstance(key, int) and 0 <= key < len(parameters)
    ]
    return {number: parameters[key] for key, inner in by_number for number in tensors_in(inner)}
