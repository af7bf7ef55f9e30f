"""Where the units of logical files lie. Pure.

Unit `u` of a file lies on target `(u + first_target) % targets`, in that target's part of the file, behind the file's earlier
units there. So every part is written front to back, and parts of a file differ by one unit at most.
"""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from robust_run.ckpt_io.rules.types import LogicalFile
from robust_run.store.digests import DIGEST_BYTES

MANIFEST_PATH = "MANIFEST"


class UnitPlace(NamedTuple):
    """Where a unit lies."""

    target: int
    path: str
    """Of its part, within the checkpoint's folder on the target."""
    offset_bytes: int
    """In the part."""
    stored_bytes: int
    size_bytes: int
    """Of what it stands for, once decoded."""


class UnitSpan(NamedTuple):
    """What of a range of a logical file falls on one unit."""

    unit: int
    begin_bytes: int
    """In the decoded unit."""
    size_bytes: int


def parts_folder(uuid: str) -> str:
    """Return the folder of all parts of one save."""
    return f"parts-{uuid}"


def part_path(uuid: str, file: int, target: int) -> str:
    """Return the path of the part of a logical file on a target, within the checkpoint's folder there."""
    return f"parts-{uuid}/{file:05d}-{target}.part"


def copy_path(uuid: str) -> str:
    """Return the path of the manifest's copy on targets that are not the primary."""
    return f"MANIFEST-{uuid}"


def unit_count(size_bytes: int, unit_bytes: int) -> int:
    """Return how many units a logical file has; an empty one has none."""
    return -(-size_bytes // unit_bytes)


def unit_size(size_bytes: int, unit_bytes: int, unit: int) -> int:
    """Return the bytes that a unit stands for: `unit_bytes`, but for the last."""
    return min(unit_bytes, size_bytes - unit * unit_bytes)


def target_of(unit: int, first_target: int, targets: int) -> int:
    """Return which target a unit lies on."""
    return (unit + first_target) % targets


def first_unit(target: int, first_target: int, targets: int) -> int:
    """Return the first unit that lies on a target; the others follow at distances of `targets`."""
    return (target - first_target) % targets


def pack_lengths(lengths: list[int]) -> str:
    """Return lengths as the manifest holds them: four bytes each, little-endian, in base64."""
    packed = array("I", lengths)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def pack_bits(bits: list[bool]) -> str:
    """Return one bit per unit, the lowest bit of the first byte first, in base64."""
    packed = bytearray(-(-len(bits) // 8))
    for index, bit in enumerate(bits):
        packed[index >> 3] |= bit << (index & 7)
    return base64.b64encode(packed).decode()


class FileLayout:
    """Where each unit of one logical file lies, its length and its digest.

    Raises:
        ValueError: The fields of the file contradict each other. The message names the field.
    """

    def __init__(self, uuid: str, index: int, file: LogicalFile, targets: int) -> None:
        self.index = index
        self.file = file
        self.units = unit_count(file.size_bytes, file.unit_bytes)
        self._targets = targets
        self._paths = [part_path(uuid, index, target) for target in range(targets)]
        self._digests = _decoded("digests", file.digests, DIGEST_BYTES * self.units)
        self._stored: array[int] | None = None
        self._offsets: array[int] | None = None
        self._raw = b""
        if file.codec == "none":
            _decoded("stored", file.stored, 0)
            _decoded("raw_units", file.raw_units, 0)
        else:
            self._raw = _decoded("raw_units", file.raw_units, -(-self.units // 8) if file.raw_units else 0)
            self._take_stored()

    def _take_stored(self) -> None:
        stored = array("I")
        stored.frombytes(_decoded("stored", self.file.stored, 4 * self.units))
        if sys.byteorder == "big":
            stored.byteswap()
        for unit, length in enumerate(stored):
            whole = unit_size(self.file.size_bytes, self.file.unit_bytes, unit)
            if not (length == whole if self.is_raw(unit) else 0 < length < whole):
                raise ValueError(f"stored length {length} of unit {unit}, which stands for {whole} bytes")
        offsets = array("Q", bytes(8 * self.units))
        for first in range(min(self._targets, self.units)):
            mine = stored[first :: self._targets]
            offsets[first :: self._targets] = array("Q", list(accumulate(mine, initial=0))[:-1])
        self._stored, self._offsets = stored, offsets

    def is_raw(self, unit: int) -> bool:
        """Return whether a unit is stored as it is."""
        if self.file.codec == "none":
            return True
        return bool(self._raw) and bool(self._raw[unit >> 3] >> (unit & 7) & 1)

    def digest(self, unit: int) -> bytes:
        """Return the digest of what is stored of a unit."""
        return self._digests[unit * DIGEST_BYTES : (unit + 1) * DIGEST_BYTES]

    def place(self, unit: int) -> UnitPlace:
        """Return where a unit lies."""
        target = target_of(unit, self.file.first_target, self._targets)
        size = unit_size(self.file.size_bytes, self.file.unit_bytes, unit)
        if self._stored is None or self._offsets is None:
            return UnitPlace(target, self._paths[target], unit // self._targets * self.file.unit_bytes, size, size)
        return UnitPlace(target, self._paths[target], self._offsets[unit], self._stored[unit], size)

    def units_on(self, target: int) -> range:
        """Return the units that lie on a target, in the order of its part."""
        return range(first_unit(target, self.file.first_target, self._targets), self.units, self._targets)

    def part_bytes(self, target: int) -> int:
        """Return the length of the part on a target; 0 when there is none."""
        units = self.units_on(target)
        if not units:
            return 0
        last = self.place(units[-1])
        return last.offset_bytes + last.stored_bytes

    def part_path(self, target: int) -> str:
        """Return the path of the part on a target."""
        return self._paths[target]

    def spans(self, offset_bytes: int, size_bytes: int) -> Iterator[UnitSpan]:
        """Cut a range of the file at the borders of its units.

        Raises:
            ValueError: The range is not within the file.
        """
        if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self.file.size_bytes:
            raise ValueError(
                f"bytes {offset_bytes}+{size_bytes} of logical file {self.file.name}: it has {self.file.size_bytes}"
            )
        return self._spans(offset_bytes, size_bytes)

    def _spans(self, offset_bytes: int, size_bytes: int) -> Iterator[UnitSpan]:
        end, unit_bytes = offset_bytes + size_bytes, self.file.unit_bytes
        while offset_bytes < end:
            unit, begin = divmod(offset_bytes, unit_bytes)
            count = min(unit_bytes - begin, end - offset_bytes)
            yield UnitSpan(unit, begin, count)
            offset_bytes += count


def _decoded(field: str, text: str, length: int) -> bytes:
    """Return the bytes of a base64 field that must have exactly `length` of them."""
    if len(text) != -(-length // 3) * 4:
        raise ValueError(f"{field} has {len(text)} characters, {length} bytes in base64 are {-(-length // 3) * 4}")
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{field} is not base64: {error}") from error
    if len(decoded) != length:
        raise ValueError(f"{field} has {len(decoded)} bytes, not {length}")
    return decoded
