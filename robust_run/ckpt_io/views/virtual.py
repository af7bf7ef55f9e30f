"""A virtual file: a stream of bytes put together from stretches of logical files, without a copy of any of them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from robust_run.ckpt_io.types import LogicalFile
from robust_run.ckpt_io.views.types import Piece, Plain, Stretch


class VirtualFile:
    """Stretches one behind the other."""

    def __init__(self, name: str, stretches: Sequence[Stretch]) -> None:
        self.name = name
        self._stretches = tuple(stretch for stretch in stretches if stretch.size_bytes)
        self._starts = list(accumulate((stretch.size_bytes for stretch in self._stretches), initial=0))

    @property
    def size_bytes(self) -> int:
        """How long the stream is."""
        return self._starts[-1]

    def pieces(self, start: int, end: int) -> Iterator[Piece | bytes]:
        """Yield, in order, where the bytes from `start` up to `end` lie; neighbours in a file are one piece."""
        last: Piece | None = None
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
                last = Piece(last.file, last.offset_bytes, last.size_bytes + piece.size_bytes)
            else:
                if last is not None:
                    yield last
                last = piece
        if last is not None:
            yield last

    def _all_pieces(self, start: int, end: int) -> Iterator[Piece | bytes]:
        index = bisect_right(self._starts, start) - 1
        while start < end:
            begin, finish = self._starts[index], min(self._starts[index + 1], end)
            yield from self._stretches[index].pieces(start - begin, finish - begin)
            start, index = finish, index + 1


def whole_file(index: int, file: LogicalFile) -> VirtualFile:
    """Return a logical file as it is."""
    return VirtualFile(file.name, [Plain(index, 0, file.size_bytes)])
