"""What an image does not keep of what it was made of, as JSON beside it: `<image>.origins.json`. None where it lost nothing.

For people: nothing that it says is followed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.prefetch.image.losses import Loss

_SUFFIX = ".origins.json"
LARGEST_BYTES = 1 << 20


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: Literal["robust-origins"] = "robust-origins"
    version: Literal[1] = 1
    sha256: str
    """Of the image that it is about, as its block map has it."""
    lost: tuple[Loss, ...]


def sidecar(image: str) -> str:
    """Return its path or URL. What follows '?' in a URL stays at the end."""
    address, mark, query = image.partition("?") if "://" in image else (image, "", "")
    return f"{address}{_SUFFIX}{mark}{query}"


def encode(origins: Origins) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.encode(origins) + b"\n"


def decode(data: bytes, sha256: str) -> Origins | None:
    """Return what a file says of the image with this sha256; None where it is damaged or about another."""
    try:
        found = msgspec.json.decode(data, type=Origins)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.sha256 == sha256 else None
