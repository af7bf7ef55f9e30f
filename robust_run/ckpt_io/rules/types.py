"""The words of checkpoints: what a manifest says. Plain data, no behaviour.

A checkpoint is a set of *logical files*. Each is cut into *units*, which are dealt over *targets*; what of one logical file
lies on one target is a *part*. The *manifest* names all of it, and is written last: without it there is no checkpoint.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.ckpt_io.address import Address

Codec = Literal["none", "lz4", "zstd_shuffle"]
"""zstd_shuffle: the bytes of the elements are grouped by significance first, which is what makes weights compressible at all."""

#: Version of the format that this code writes, and the only one it reads.
VERSION = 1
#: Where tensors begin within a logical file: what direct I/O and memory mapping ask for.
ALIGNMENT_BYTES = 4096
UNIT_BYTES = 8 << 20


class LogicalFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream of bytes: what one rank saved, or a file that was imported as it is.

    Unit `u` lies on target `(u + first_target) % targets`, as number `u // targets` of that target's part.
    """

    name: str
    size_bytes: int
    unit_bytes: int = UNIT_BYTES
    """Of all units but the last. A power of two from 1 to 64 MiB."""
    first_target: int = 0
    """Differs from file to file, or all small files would lie on the first target."""
    codec: Codec = "none"
    item_bytes: int = 1
    """Width of the elements that `zstd_shuffle` groups."""
    digests: str = ""
    """Base64 of 16 bytes per unit: xxh3_128 of what is stored of it."""
    stored: str = ""
    """Base64 of four bytes (little-endian) per unit: how many are stored of it. Empty: all are stored as they are."""
    raw_units: str = ""
    """Base64 of a bit per unit, lowest first: stored as it is although there is a codec. Empty: none is."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A box of a tensor, contiguous in C order, as raw little-endian elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: int
    """Index of its logical file."""
    offset_bytes: int


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor of the state dict; its chunks cover it."""

    name: str
    """Its flattened key: `model.layers.0.weight`."""
    dtype: str
    """As torch calls it, without the prefix: float32, bfloat16, int64..."""
    sizes: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class Blob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of the state dict that is no tensor, as torch.save wrote it."""

    name: str
    file: int
    offset_bytes: int
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All there is to say of one checkpoint."""

    version: int = VERSION
    uuid: str
    """32 hexadecimal digits; part of the name of all its parts."""
    created_s: float
    """Seconds since the epoch."""
    step: int | None = None
    targets: tuple[str, ...] = (".",)
    """URL of the checkpoint's folder on each target; "." is the one that the manifest lies in."""
    files: tuple[LogicalFile, ...]
    tensors: tuple[Tensor, ...] = ()
    blobs: tuple[Blob, ...] = ()
    paths: dict[str, tuple[str | int, ...]] = {}
    """Where a flattened key belongs in the nested state dict."""
    facts: dict[str, str] = {}
    """World size, framework, code version: for people."""


class SavePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One save. Made once, by `begin_save`, and handed to every process that writes."""

    url: str
    """The checkpoint's folder on its primary target: an absolute path or a URL."""
    also: tuple[str, ...] = ()
    """Roots of the other targets."""
    uuid: str
    unit_bytes: int = UNIT_BYTES
    codec: Codec = "none"
    item_bytes: int = 1
    """Width of the elements that `zstd_shuffle` groups, of files that say nothing else."""
    durable: bool = True
    """All is synced before the manifest is written: a power loss after `commit` loses nothing."""

    @property
    def where(self) -> Address:
        """Where it is written to."""
        return Address(self.url, self.also)

    @property
    def folders(self) -> tuple[str, ...]:
        """The checkpoint's folder on each target."""
        return self.where.folders
