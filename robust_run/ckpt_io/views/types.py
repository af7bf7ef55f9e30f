"""The words of views: what a view reads from, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.types import Manifest


class Source(Protocol):
    """What a view reads from: an open checkpoint."""

    @property
    def manifest(self) -> Manifest:
        """What it holds."""
        ...

    def read(self, wanted: Sequence[Wanted]) -> None:
        """Fill all buffers with verified bytes, or raise. No buffer is touched after that."""
        ...

    def close(self) -> None:
        """Give back what it holds open."""
        ...


@dataclass(frozen=True)
class Piece:
    """A stretch of bytes that lies in one logical file without a break."""

    file: int
    """Index of the logical file."""
    offset_bytes: int
    size_bytes: int


class Stretch(Protocol):
    """A part of a virtual file."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it is."""
        ...

    def pieces(self, start: int, end: int) -> Iterator[Piece | bytes]:
        """Yield, in order, what its bytes from `start` up to `end` are: places in logical files, or the bytes themselves."""
        ...


@dataclass(frozen=True)
class Literal:
    """Bytes that lie in no logical file: a header."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """How many they are."""
        return len(self.data)

    def pieces(self, start: int, end: int) -> Iterator[Piece | bytes]:
        """Yield the bytes themselves."""
        yield self.data[start:end]


@dataclass(frozen=True)
class Plain:
    """Bytes that lie in a logical file in the same order."""

    file: int
    offset_bytes: int
    size_bytes: int

    def pieces(self, start: int, end: int) -> Iterator[Piece | bytes]:
        """Yield the one place that they have."""
        yield Piece(self.file, self.offset_bytes + start, end - start)
