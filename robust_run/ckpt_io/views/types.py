"""The words of views: what a view reads from, and what it is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.rules.types import LogicalFile, Manifest


class ViewSource(Protocol):
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
class ViewPiece:
    """A stretch of bytes that lies in one logical file without a break."""

    file: int
    """Index of the logical file."""
    offset_bytes: int
    size_bytes: int


class FileStretch(Protocol):
    """A part of a virtual file."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it is."""
        ...

    def pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
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

    def pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
        """Yield the bytes themselves."""
        yield self.data[start:end]


@dataclass(frozen=True)
class Plain:
    """Bytes that lie in a logical file in the same order."""

    file: int
    offset_bytes: int
    size_bytes: int

    def pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
        """Yield the one place that they have."""
        yield ViewPiece(self.file, self.offset_bytes + start, end - start)


# --- A virtual file: a stream of bytes put together from stretches of logical files, without a copy of any of them. Pure.


class VirtualFile:
    """Stretches one behind the other."""

    def __init__(self, name: str, stretches: Sequence[FileStretch]) -> None:
        self.name = name
        self._stretches = tuple(stretch for stretch in stretches if stretch.size_bytes)
        self._starts = list(accumulate((stretch.size_bytes for stretch in self._stretches), initial=0))

    @property
    def size_bytes(self) -> int:
        """How long the stream is."""
        return self._starts[-1]

    def pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
        """Yield, in order, where the bytes from `start` up to `end` lie; neighbours in a file are one piece."""
        last: ViewPiece | None = None
        for piece in self._all_pieces(max(start, 0), min(end, self.size_bytes)):
            if isinstance(piece, bytes):
                if last is not None:
                    yield last
                    last = None
                yield piece
            elif last is not None and (last.file, last.offset_bytes + last.size_bytes) == (
                piece.file,
                piece.offset_bytes,
            ):
                last = ViewPiece(last.file, last.offset_bytes, last.size_bytes + piece.size_bytes)
            else:
                if last is not None:
                    yield last
                last = piece
        if last is not None:
            yield last

    def _all_pieces(self, start: int, end: int) -> Iterator[ViewPiece | bytes]:
        index = bisect_right(self._starts, start) - 1
        while start < end:
            begin, finish = self._starts[index], min(self._starts[index + 1], end)
            yield from self._stretches[index].pieces(start - begin, finish - begin)
            start, index = finish, index + 1


def whole_file(index: int, file: LogicalFile) -> VirtualFile:
    """Return a logical file as it is."""
    return VirtualFile(file.name, [Plain(index, 0, file.size_bytes)])
