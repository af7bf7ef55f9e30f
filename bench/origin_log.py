"""What a modelled origin has sent to whom, from its log: for `origin_bytes`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

PIECE_BYTES = 128 << 10


@dataclass
class Counted:
    """What has left the origin."""

    size_bytes: Counter[str] = field(default_factory=Counter)
    who: dict[str, dict[tuple[str, int], list[str]]] = field(default_factory=dict)
    """Kind → (path, piece) → the hosts that were sent it."""

    @classmethod
    def of(cls, text: str) -> Counted:
        """Return what a log of the modelled origin says; see `tests/servers/model_origin.py`."""
        found = cls()
        for line in text.splitlines():
            _at, who, path, offset, size = line.split("\t")
            found.add(who, path, int(offset), int(size))
        return found

    def add(self, who: str, path: str, offset: int, size: int) -> None:
        """Count an answer."""
        kind = kind_of(path)
        self.size_bytes[kind] += size
        pieces = self.who.setdefault(kind, {})
        for piece in range(offset // PIECE_BYTES, -(-(offset + size) // PIECE_BYTES)):
            pieces.setdefault((path, piece), []).append(who)

    def again(self, kind: str, nodes: int) -> tuple[int, int]:
        """Return about how many bytes left it again and again: what all nodes asked for, and what some did."""
        many = [hosts for hosts in self.who.get(kind, {}).values() if len(hosts) > 1]
        by_all = sum(len(hosts) - 1 for hosts in many if len(set(hosts)) >= nodes)
        return by_all * PIECE_BYTES, (sum(len(hosts) - 1 for hosts in many) - by_all) * PIECE_BYTES


def kind_of(path: str) -> str:
    """Return what a path of the origin belongs to."""
    if path.endswith((".json", ".ok")):
        return "small"
    return {"train.sqsh": "image", "store": "snapshot", "ckpt": "checkpoint"}.get(path.partition("/")[0], path)
