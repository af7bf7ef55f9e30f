"""What is in a checkpoint that others wrote. Plain data."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.types import Tensor


class ForeignItem(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes within a file of the folder."""

    path: str
    """Clean: it does not lead out of the folder."""
    offset_bytes: int
    size_bytes: int


class ForeignBlob(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is no tensor, as torch.save wrote it."""

    name: str
    item: ForeignItem


class DcpFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of a torch.distributed.checkpoint folder says."""

    tensors: tuple[Tensor, ...]
    """`file` of their chunks is the number of the item; offsets are 0."""
    items: tuple[ForeignItem, ...]
    """Of the chunks: each is a tensor as torch.save wrote it."""
    blobs: tuple[ForeignBlob, ...]
    paths: dict[str, tuple[str | int, ...]]
    """Where a flattened key belongs in the nested state dict."""
