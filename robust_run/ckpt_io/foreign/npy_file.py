"""How long a file of numpy.save is, by its header. Pure."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

MAGIC = b"\x93NUMPY"
#: Longer headers are those of types with very many fields, of which nothing is said.
HEADER_LIMIT_BYTES = 1 << 16
_TYPE = re.compile(r"[<>=|]?([?biufcSaUVmM])(\d+)(?:\[[^\]]*\])?")
_CHARACTER_BYTES = 4


def header_bytes(head: bytes | bytearray) -> int | None:
    """Return how many bytes come before the elements, by the first 12; None if that cannot be told."""
    width = {1: 2, 2: 4, 3: 4}.get(head[6]) if len(head) > 6 else None
    if width is None or len(head) < 8 + width:
        return None
    length = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    return length if length <= HEADER_LIMIT_BYTES else None


def npy_bytes(read: Callable[[int, int], bytes], size_bytes: int) -> int | None:
    """Return how long the file is; if not all of its header is there, up to its end; None: it cannot be told (objects)."""
    head = read(0, min(12, size_bytes))
    if size_bytes < 12:
        return 12
    length = header_bytes(head)
    if length is None or length > size_bytes:
        return length
    begin = 10 if head[6] == 1 else 12
    elements = _elements_bytes(read(begin, length - begin))
    return None if elements is None else length + elements


def _elements_bytes(header: bytes) -> int | None:
    try:
        fields = ast.literal_eval(header.decode("latin-1").strip())
        shape, found = fields["shape"], _TYPE.fullmatch(fields["descr"])
        if found is None or not all(type(size) is int and size >= 0 for size in shape):
            return None
        return int(math.prod(shape)) * int(found[2]) * (_CHARACTER_BYTES if found[1] == "U" else 1)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        return None
