"""Whether a file has its end: told by its format, from its first and last bytes. Pure.

torch.save and numpy.savez write zip archives, whose directory is written last; the headers of safetensors and of numpy.save say
how long the file is. Of anything else nothing can be said.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from robust_run.ckpt_io.views.safetensors_view import HEADER_LIMIT_BYTES
from robust_run.decoders import json_decoder

End = Literal["whole", "cut off", "unknown"]
Read = Callable[[int, int], bytes]
"""`read(offset, size)` returns bytes of the file."""

_HEAD_BYTES = 16
_ZIP_MAGIC, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_ZIP_END_BYTES = 22
#: A zip archive's last record, with the longest comment.
_TAIL_BYTES = _ZIP_END_BYTES + 65535
_ZIP64_LOCATOR, _ZIP64_END = b"PK\x06\x07", b"PK\x06\x06"
_ZIP64_BYTES = 20 + 56
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF


class _Place(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]


def end_of(read: Read, size_bytes: int) -> tuple[End, str]:
    """Return whether a file is whole, and if it is cut off, what shows that. Raises what `read` raises."""
    head = read(0, min(_HEAD_BYTES, size_bytes))
    if head.startswith(_ZIP_MAGIC):
        tail = read(max(0, size_bytes - _TAIL_BYTES), min(size_bytes, _TAIL_BYTES))
        if not _has_zip_end(tail):
            return "cut off", "it is a zip archive (of torch.save, for one) without its directory, which comes last"
        return ("whole" if _ends_as_zip(tail, size_bytes) else "unknown"), ""
    if head[8:9] == b"{":
        length = _safetensors_bytes(read, size_bytes)
        if length is not None and length > size_bytes:
            return "cut off", f"its safetensors header says that it has {length} bytes, and it has {size_bytes}"
        return ("whole" if length == size_bytes else "unknown"), ""
    if head.startswith(MAGIC):
        length = npy_bytes(read, size_bytes)
        if length is not None and length > size_bytes:
            return "cut off", f"its numpy header says that it has at least {length} bytes, and it has {size_bytes}"
        return ("whole" if length == size_bytes else "unknown"), ""
    return "unknown", ""


def is_zip(head: bytes | bytearray) -> bool:
    """Whether a file that begins so is a zip archive."""
    return head.startswith(_ZIP_MAGIC)


def whole_zip_ends_in(data: bytes, offset_bytes: int) -> bool:
    """Whether a zip archive that began with the file ends in these bytes of it, which begin at an offset."""
    at = data.find(_ZIP_END)
    while at >= 0:
        if _ends_as_zip(data[max(0, at - _ZIP64_BYTES) : at + _ZIP_END_BYTES], offset_bytes + at + _ZIP_END_BYTES):
            return True
        at = data.find(_ZIP_END, at + 1)
    return False


def _has_zip_end(tail: bytes) -> bool:
    """Whether the last bytes of a file have a zip archive's last record in them, all of it."""
    at = tail.rfind(_ZIP_END)
    comment_bytes = int.from_bytes(tail[at + 20 : at + 22], "little")
    return at >= 0 and len(tail) >= at + _ZIP_END_BYTES + comment_bytes


def _ends_as_zip(tail: bytes, size_bytes: int) -> bool:
    """Whether the last bytes of a file are the end of one zip archive that begins with the file and has no comment."""
    end = tail[-_ZIP_END_BYTES:]
    if len(end) < _ZIP_END_BYTES or end[:4] != _ZIP_END or end[20:] != b"\0\0":
        return False
    entries, size, offset = (int.from_bytes(end[at:to], "little") for at, to in ((10, 12), (12, 16), (16, 20)))
    after = _ZIP_END_BYTES
    locator = tail[-_ZIP_END_BYTES - 20 : -_ZIP_END_BYTES]
    if locator[:4] == _ZIP64_LOCATOR:
        after += _ZIP64_BYTES
        record = tail[-after : -_ZIP_END_BYTES - 20]
        if record[:4] != _ZIP64_END or int.from_bytes(locator[8:16], "little") != size_bytes - after:
            return False
        size, offset = int.from_bytes(record[40:48], "little"), int.from_bytes(record[48:56], "little")
    elif entries == _FULL_16 or _FULL_32 in (size, offset):
        return False
    return size > 0 and offset + size == size_bytes - after


def _safetensors_bytes(read: Read, size_bytes: int) -> int | None:
    """Return how long a safetensors file is by its header; if not all of that is there, up to its end; None: no such file."""
    header_bytes = int.from_bytes(read(0, 8), "little")
    if not 2 <= header_bytes <= HEADER_LIMIT_BYTES:
        return None
    if 8 + header_bytes > size_bytes:
        return 8 + header_bytes
    try:
        header = msgspec.json.decode(read(8, header_bytes), type=dict[str, msgspec.Raw])
        places = [json_decoder(_Place).decode(raw) for name, raw in header.items() if name != "__metadata__"]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return 8 + header_bytes + max((place.data_offsets[1] for place in places), default=0)


class Ends:
    """The first and last bytes of a file that is being written from front to back: as many as `end_of` asks for."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.size_bytes = 0
        """Of what was written."""

    def add(self, data: memoryview) -> None:
        """Take what is written next."""
        if len(self._head) == self.size_bytes:  # nothing was left out so far
            self._head += data[: max(0, _HEAD_BYTES - len(self._head))]
            self._head += data[len(self._head) - self.size_bytes : max(0, self._head_bytes() - self.size_bytes)]
        self._tail += data[-_TAIL_BYTES:]
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        self.size_bytes += len(data)

    @property
    def end(self) -> End:
        """Whether the format shows that nothing is missing, or that something is."""
        return self.told[0]

    @property
    def told(self) -> tuple[End, str]:
        """The same, and if something is missing, what shows that."""
        return end_of(self._read, self.size_bytes)

    @property
    def is_zip(self) -> bool:
        """Whether it is a zip archive."""
        return is_zip(self._head)

    def kept(self, offset: int, size: int) -> bytes | None:
        """Return bytes of the file if they are still held here."""
        if offset + size <= len(self._head):
            return bytes(self._head[offset : offset + size])
        at = offset - (self.size_bytes - len(self._tail))
        return bytes(self._tail[at : at + size]) if at >= 0 else None

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes of the head, or those of the tail that `end_of` asks for."""
        if offset + size == self.size_bytes and size <= len(self._tail):
            return bytes(self._tail[len(self._tail) - size :])
        return bytes(self._head[offset : offset + size])

    def _head_bytes(self) -> int:
        if self._head.startswith(MAGIC):
            return header_bytes(self._head) or _HEAD_BYTES
        if self._head[8:9] != b"{":
            return _HEAD_BYTES
        length = int.from_bytes(self._head[:8], "little")
        return 8 + length if length <= HEADER_LIMIT_BYTES else _HEAD_BYTES


# --- How long a file of numpy.save is, by its header. Pure.

MAGIC = b"\x93NUMPY"
#: Longer headers are those of types with very many fields, of which nothing is said.
_LARGEST_NPY_HEADER_BYTES = 1 << 16
_TYPE = re.compile(r"[<>=|]?([?biufcSaUVmM])(\d+)(?:\[[^\]]*\])?")
_CHARACTER_BYTES = 4


def header_bytes(head: bytes | bytearray) -> int | None:
    """Return how many bytes come before the elements, by the first 12; None if that cannot be told."""
    width = {1: 2, 2: 4, 3: 4}.get(head[6]) if len(head) > 6 else None
    if width is None or len(head) < 8 + width:
        return None
    length = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    return length if length <= _LARGEST_NPY_HEADER_BYTES else None


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
