"""What keys do: from the bytes of a terminal to keys, and from a key to what is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Key = Literal["up", "down", "page_up", "page_down", "home", "end", "incidents", "nodes", "help", "back", "quit"]

#: As terminals send them (ECMA-48 and xterm's variants), and letters of vi, less and htop.
_SEQUENCES: dict[bytes, Key] = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page_up",
    b"\x1b[6~": "page_down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"k": "up",
    b"j": "down",
    b"b": "page_up",
    b" ": "page_down",
    b"g": "home",
    b"G": "end",
    b"i": "incidents",
    b"n": "nodes",
    b"h": "help",
    b"?": "help",
    b"q": "quit",
    b"Q": "quit",
    b"\x03": "quit",
    b"\x04": "quit",
}
_LONGEST = max(map(len, _SEQUENCES))


class Looking(msgspec.Struct, frozen=True, kw_only=True):
    """What the user looks at."""

    pane: Literal["nodes", "incidents", "help"] = "nodes"
    first: int = 0
    """Place of the first node, or incident, on the screen."""
    is_over: bool = False
    """They want to go."""


def read_keys(data: bytes) -> list[Key]:
    """Return the keys that were pressed; bytes that are none are left out, an escape alone goes back."""
    keys: list[Key] = []
    position = 0
    while position < len(data):
        for length in range(_LONGEST, 0, -1):
            key = _SEQUENCES.get(data[position : position + length])
            if key is not None:
                keys.append(key)
                position += length
                break
        else:
            if data[position : position + 1] == b"\x1b":
                if position + 1 == len(data):
                    keys.append("back")
                position = _after_escape(data, position)
            else:
                position += 1
    return keys


def _after_escape(data: bytes, position: int) -> int:
    """Return where an unknown escape sequence ends: behind its first letter or `~`."""
    position += 1
    if data[position : position + 1] not in (b"[", b"O"):
        return position
    position += 1
    while position < len(data) and not (0x40 <= data[position] <= 0x7E):
        position += 1
    return position + 1


def press(looking: Looking, keys: Sequence[Key], rows: int, total: int) -> Looking:
    """Return what is looked at after some keys. `rows`: that the pane shows, `total`: that there are."""
    for key in keys:
        looking = _press(looking, key, max(rows, 1), total)
    return looking


def _press(looking: Looking, key: Key, rows: int, total: int) -> Looking:
    if key == "quit" or (key == "back" and looking.pane == "nodes"):
        return msgspec.structs.replace(looking, is_over=True)
    if key in ("back", looking.pane):
        return Looking()
    if key in ("incidents", "nodes", "help"):
        return Looking(pane=key)
    last = max(total - rows, 0)
    first = {
        "up": looking.first - 1,
        "down": looking.first + 1,
        "page_up": looking.first - rows,
        "page_down": looking.first + rows,
        "home": 0,
        "end": last,
    }[key]
    return msgspec.structs.replace(looking, first=max(min(first, last), 0))
