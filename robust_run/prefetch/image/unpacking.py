"""Layers as a stream: verified while they are read, decompressed within bounds, never read backwards."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Literal, cast

from robust_run.prefetch.errors import ImageRefused

Packing = Literal["none", "gzip", "zstd"]
_PIECE_BYTES = 256 << 10
#: What tarfile may ask for at once: an extended header, which it keeps whole in memory.
LARGEST_READ_BYTES = 16 << 20
_ZSTD_WINDOW_BYTES = 128 << 20


class StoredLayer:
    """The file of a layer as it is stored: counted, hashed, and read once from its beginning to its end."""

    def __init__(
        self, file: IO[bytes], size_bytes: int, progress: Callable[[int], None] | None, *, hashed: bool = True
    ) -> None:
        """`hashed`: False where `finish` is not called."""
        self._file, self._left, self._progress = file, size_bytes, progress
        self._digest = hashlib.sha256() if hashed else None

    def read(self, most_bytes: int) -> bytes:
        """Return the next bytes; none at the end. Raises `ImageRefused` where the file is longer than was said."""
        data = self._file.read(min(most_bytes, self._left + 1))
        if len(data) > self._left:
            raise ImageRefused("a layer's blob is longer than its descriptor says; copy the layout again")
        self._left -= len(data)
        if self._digest is not None:
            self._digest.update(data)
        if self._progress is not None and data:
            self._progress(len(data))
        return data

    def finish(self, sha256: str) -> None:
        """Read what is left, and see that all of it was what it should be. Raises `ImageRefused`."""
        while self.read(_PIECE_BYTES):
            pass
        if self._left or self._digest is None or self._digest.hexdigest() != sha256:
            raise ImageRefused(f"layer {sha256[:12]} is damaged (its digest differs); copy the layout again")


class LayerReader:
    """A layer's tar, piece by piece."""

    def __init__(self, stored: StoredLayer, pieces: Iterator[bytes]) -> None:
        self.stored, self.pieces = stored, pieces


def unpacked(
    file: IO[bytes],
    packing: Packing,
    size_bytes: int,
    progress: Callable[[int], None] | None = None,
    *,
    hashed: bool = True,
) -> LayerReader:
    """Return a layer's tar as pieces of bounded size. `hashed`: whether its digest will be asked for."""
    stored = StoredLayer(file, size_bytes, progress, hashed=hashed)
    if packing == "gzip":
        return LayerReader(stored, _gzip(stored))
    if packing == "zstd":
        return LayerReader(stored, _zstd(stored))
    return LayerReader(stored, iter(lambda: stored.read(_PIECE_BYTES), b""))


def _gzip(stored: StoredLayer) -> Iterator[bytes]:
    """Members one after the other, as parallel compressors write them."""
    data = stored.read(_PIECE_BYTES)
    while data:
        engine = zlib.decompressobj(16 + zlib.MAX_WBITS)
        while not engine.eof:
            try:
                piece = engine.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise ImageRefused(f"a layer is damaged: {error}") from error
            data = engine.unconsumed_tail
            if piece:
                yield piece
            if not engine.eof and not data and not (data := stored.read(_PIECE_BYTES)):
                raise ImageRefused("a layer is cut short; copy the layout again")
        data = engine.unused_data or stored.read(_PIECE_BYTES)
        if not data.strip(b"\0"):
            return


def _zstd(stored: StoredLayer) -> Iterator[bytes]:
    import zstandard

    engine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    try:
        # The reader is given our own reads, bounded in what it asks for and in what it gives.
        with engine.stream_reader(
            cast("IO[bytes]", _AsFile(stored)), read_size=_PIECE_BYTES, read_across_frames=True
        ) as reader:
            while piece := reader.read(_PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise ImageRefused(f"a layer is damaged: {error}") from error


class _AsFile:
    """What zstandard wants to read from."""

    def __init__(self, stored: StoredLayer) -> None:
        self._stored = stored

    def read(self, most_bytes: int) -> bytes:
        return self._stored.read(most_bytes)


class ForwardReader:
    """What tarfile reads from: seeks forwards only, and gives no more at once than a header may have."""

    def __init__(self, source: LayerReader) -> None:
        self._source = source
        self._rest = memoryview(b"")
        self._at = 0

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skip to a place further on. Raises `ImageRefused` for one behind us."""
        if whence or offset < self._at:
            raise ImageRefused("a layer's tar refers back to what was read already; it cannot be unpacked in one go")
        while self._at < offset:
            if not self._take(offset - self._at):
                break  # tarfile finds that there is nothing more
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return so many bytes, fewer at the end. Raises `ImageRefused` for more than a header may have."""
        if not 0 <= count <= LARGEST_READ_BYTES:
            raise ImageRefused(f"a layer's tar has a header of {count} bytes; at most {LARGEST_READ_BYTES} are read")
        pieces = []
        while count:
            piece = self._take(count)
            if not piece:
                break
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def finish(self, sha256: str) -> None:
        """See that the layer was what it should be. Raises `ImageRefused`."""
        self._source.stored.finish(sha256)

    def _take(self, most_bytes: int) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._source.pieces, b""))
        piece, self._rest = self._rest[:most_bytes], self._rest[most_bytes:]
        self._at += len(piece)
        return bytes(piece)


@contextmanager
def opened_tar(reader: ForwardReader, sha256: str) -> Iterator[tarfile.TarFile]:
    """Open a layer's tar. All that goes wrong while it is read becomes `ImageRefused`; `sha256` is for the message."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:", errorlevel=2, encoding="utf-8") as tar:
            yield tar
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError, OSError) as error:
        raise ImageRefused(f"layer {sha256[:12]}: {' '.join(str(error).split())[:200] or 'damaged'}") from error


def members_of(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of a tar, none of which is kept in memory."""
    if tar.offset == 0:  # of a tar without entries Python 3.10 looks for the next one before the beginning
        return
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        yield member
