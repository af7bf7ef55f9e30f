"""Images for tests: a few megabytes that are the same each time, and their block map."""

from __future__ import annotations

import random
from pathlib import Path

from robust_run.prefetch import blockmap
from robust_run.prefetch.rules.types import BlockMap

MIB = 1 << 20
SMALL_BLOCK = 64 << 10


def make_image(
    folder: Path, size_bytes: int, *, block_bytes: int = MIB, name: str = "train.sqsh"
) -> tuple[Path, BlockMap]:
    """Write an image of random bytes and return it with its map."""
    path = folder / name
    path.write_bytes(random.Random(size_bytes).randbytes(size_bytes))
    return path, blockmap.make(str(path), block_bytes=block_bytes)
