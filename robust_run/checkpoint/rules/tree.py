"""Nested values as nodes of msgpack, and back: exactly, and as data. Pure.

None, bool, float, str, bytes and integers of 64 bits are nodes as they are. Everything else is a list that begins with a tag, so
that tuples stay tuples, integers stay keys, and larger integers stay whole. Tensors are named by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Node = Any
Path = tuple[str | int, ...]

LIST, TUPLE, DICT, INTEGER, TENSOR, OBJECT = "l", "t", "d", "i", "T", "o"
MOST_LEVELS = 64
_AS_THEY_ARE = frozenset({type(None), bool, float, bytes})


def shown(path: Path) -> str:
    """Return a path as it is written in messages and names of tensors."""
    return ".".join([str(key) for key in path])


class Packer:
    """Makes nodes of values. `leaf` is asked about all that is not plain: a node, or None for what it does not know either.

    What cannot be kept is collected in `refused`: its key, and why.
    """

    def __init__(self, leaf: Callable[[object, Path], Node | None]) -> None:
        self._leaf = leaf
        self.refused: list[tuple[str, str]] = []

    def pack(self, value: object, path: Path) -> Node:
        """Return the node of a value; of one that is refused, None."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 64 else [INTEGER, hex(value)]  # type: ignore[operator,arg-type]
        if kind is str:
            return self._text(value, path)  # type: ignore[arg-type]
        if len(path) > MOST_LEVELS:
            return self.refuse(path[:4], f"is nested deeper than {MOST_LEVELS} levels, or contains itself")
        node = self._leaf(value, path)
        if node is not None:
            return node
        if isinstance(value, dict):
            return [DICT, *self._pairs(value, path)]
        if kind is list:
            return [LIST, *(self.pack(each, (*path, at)) for at, each in enumerate(value))]  # type: ignore[arg-type,var-annotated]
        if kind is tuple or (kind.__module__, kind.__name__) == ("torch", "Size"):  # equal to the tuple that comes back
            return [TUPLE, *(self.pack(each, (*path, at)) for at, each in enumerate(value))]  # type: ignore[arg-type,var-annotated]
        if isinstance(
            value, float
        ):  # numpy's float64, as of learning rates that a scheduler's lambda computes with numpy
            return float(value)
        return self.refuse(path, _why_not(value))

    def refuse(self, path: Path, reason: str) -> None:
        """Note that something cannot be kept."""
        self.refused.append((shown(path) or "the state", reason))

    def _text(self, value: str, path: Path) -> Node:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return self.refuse(path, "is text with half a surrogate pair, which UTF-8 has no bytes for")
        return value

    def _pairs(self, value: dict[Any, object], path: Path) -> Iterator[Node]:
        for key, inner in value.items():
            if type(key) is int:
                yield key if -(1 << 63) <= key < 1 << 64 else [INTEGER, hex(key)]
            elif type(key) is str:
                yield self._text(key, (*path, key))
            else:
                self.refuse((*path, repr(key)[:40]), f"the key is a {type(key).__name__}: use text or an integer")
                continue
            yield self.pack(inner, (*path, key))


def _why_not(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, (int, str)) or kind.__module__ == "numpy":
        return f"is a {name}: save it as int(...), float(...), str(...) or a tensor"
    if isinstance(value, tuple):
        return f"is a {name}: save it as tuple(...)"
    if kind.__name__ == "DataLoader":
        return f"is a {name} without state_dict: use torchdata's StatefulDataLoader, or save its position as a number"
    return f"is a {name}, which only pickle could keep: give it state_dict and load_state_dict, or save plain values"


def unpack(node: Node, tensor: Callable[[int], object]) -> Any:
    """Return the value of a node. Raises ValueError: it is none of `Packer`'s."""
    if not isinstance(node, list):
        return node
    match node:
        case ["l", *items]:
            return [unpack(each, tensor) for each in items]
        case ["t", *items]:
            return tuple(unpack(each, tensor) for each in items)
        case ["d", *_]:
            return {key: unpack(inner, tensor) for key, inner in pairs(node)}
        case ["i", str(text)]:
            return int(text, 16)
        case ["T", int(number)]:
            return tensor(number)
        case ["o", inner]:
            return unpack(inner, tensor)
    raise ValueError(f"no node of a state: {node!r:.80}")


def pairs(node: Node) -> Iterator[tuple[str | int, Node]]:
    """Yield the keys of a dict's node, and the nodes of what they stand for. Raises ValueError: it is no such node."""
    if len(node) % 2 == 0:
        raise ValueError("a dict of a state has a key without a value")
    for at in range(1, len(node), 2):
        key = unpack(node[at], lambda _: None)
        if not isinstance(key, (str, int)):
            raise ValueError(f"a dict of a state has the key {key!r:.80}")
        yield key, node[at + 1]


def kind_of(node: Node) -> str:
    """Return the tag of a node; empty: it is a value as it is."""
    return str(node[0]) if isinstance(node, list) and node else ""


def tensors_in(node: Node) -> Iterator[int]:
    """Yield the positions of all tensors that a node names, those of objects included."""
    if kind_of(node) == TENSOR:
        yield node[1]
    elif isinstance(node, list):
        for each in node[1:]:
            yield from tensors_in(each)
