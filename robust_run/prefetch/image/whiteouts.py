"""Which whiteouts a layer has: found by reading it once before it is applied.

They concern the layers below and nothing of their own layer, wherever in it they stand (OCI image specification, layer.md): so
they are carried out first, on what the layers below have made, and the entries come after all of them.
"""

from __future__ import annotations

import threading
from typing import IO

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.names import LayerLimits, Whiteout, is_bookkeeping, parts_of, whiteout_of
from robust_run.prefetch.image.unpacking import ForwardReader, Packing, members_of, opened_tar, unpacked


def whiteouts_in(
    file: IO[bytes],
    packing: Packing,
    sha256: str,
    size_bytes: int,
    limits: LayerLimits,
    stopping: threading.Event | None = None,
) -> list[Whiteout]:
    """Return the whiteouts of a layer, in its order. Its bytes are not verified: who applies it sees that it has these.

    `stopping`: nobody wants to know any more. Raises `ImageRefused`.
    """

    def go_on(_count: int) -> None:
        if stopping is not None and stopping.is_set():
            raise ImageRefused(f"layer {sha256[:12]}: it was not read to its end")

    found: list[Whiteout] = []
    entries = total_bytes = 0
    reader = ForwardReader(unpacked(file, packing, size_bytes, go_on, hashed=False))
    with opened_tar(reader, sha256) as tar:
        for member in members_of(tar):
            entries, total_bytes = entries + 1, total_bytes + member.size
            if entries > limits.entries or total_bytes > limits.bytes:
                raise ImageRefused(
                    f"layer {sha256[:12]}: more than {limits.entries} entries or {limits.bytes} bytes; at most that many"
                    " are unpacked"
                )
            parts = parts_of(member.name)
            hidden = None if is_bookkeeping(parts) else whiteout_of(parts)
            if hidden is not None:
                found.append(hidden)
                if len(found) > limits.whiteouts:
                    raise ImageRefused(
                        f"layer {sha256[:12]}: more than {limits.whiteouts} whiteouts; that many are not read"
                    )
    return found
