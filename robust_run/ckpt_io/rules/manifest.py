"""A manifest as bytes, and whether what it says can be. Pure.

The first line names format, version, digest and length of the rest; the rest is JSON. Nothing of a manifest is believed before
`check` has held every number against the others: a manifest may come from anybody.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import xxhash

from robust_run.ckpt_io.errors import ManifestRefused
from robust_run.ckpt_io.rules.boxes import BYTES_OF, box_bytes, check_cover
from robust_run.ckpt_io.rules.layout import FileLayout
from robust_run.ckpt_io.rules.types import VERSION, LogicalFile, Manifest
from robust_run.decoders import json_decoder
from robust_run.store import paths

MANIFEST_BYTES = 256 << 20
HEADER_BYTES = 128
#: Commas and colons of the JSON: a bound on its values, and so on the memory that decoding takes.
VALUES = 1 << 24
FILES = 100_000
TARGETS = 1024
UNIT_BYTES_LEAST, UNIT_BYTES_MOST = 1 << 20, 64 << 20
#: Of a logical file: an exbibyte.
FILE_BYTES = 1 << 60
TEXT_BYTES = 4096
FACTS = 10_000
FACT_BYTES = 1 << 20
PATH_PARTS = 256
ITEM_BYTES = (1, 2, 4, 8, 16)

_HEADER = re.compile(rb"rrck (\d{1,9}) ([0-9a-f]{32}) (\d{1,12})")
_UUID = re.compile(r"[0-9a-f]{32}")
_DECODER = json_decoder(Manifest)


class OwnedSegment(NamedTuple):
    """Bytes of a logical file that something of the state dict owns."""

    file: int
    begin_bytes: int
    end_bytes: int
    owner: str


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as it is stored.

    Raises:
        ManifestRefused: It contradicts itself or is beyond a limit. What could not be read back is not written.
    """
    check(manifest)
    try:
        body = msgspec.json.encode(manifest)
    except (UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ManifestRefused(f"some text in it is no valid text: {error}") from error
    _check_size(body)
    return b"rrck %d %s %d\n" % (manifest.version, _digest(body), len(body)) + body


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestRefused: It is damaged, of another version, or `check` refuses it. Never anything else.
    """
    header, _, body = data[:HEADER_BYTES].partition(b"\n")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ManifestRefused("it does not begin with 'rrck', version, digest and length")
    version, digest, length = int(match[1]), match[2], int(match[3])
    if version != VERSION:
        raise ManifestRefused(f"it is of version {version}, this robust-run reads version {VERSION}")
    body = data[len(header) + 1 :]
    if len(body) != length:
        raise ManifestRefused(f"it has {len(body)} bytes after its first line, which says {length}")
    if _digest(body) != digest:
        raise ManifestRefused(f"its digest is {_digest(body).decode()}, its first line says {digest.decode()}")
    _check_size(body)
    try:
        manifest = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ManifestRefused(f"it does not say what version {VERSION} says: {str(error)[:200]}") from error
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    """Hold what a manifest says against itself and the limits.

    Raises:
        ManifestRefused: With the first thing that is wrong.
    """
    try:
        _check_head(manifest)
        _check_files(manifest)
        _check_tensors(manifest)
        _check_segments(manifest)
        _check_paths(manifest)
    except ValueError as error:
        raise ManifestRefused(str(error)) from error


def name_fault(name: str) -> str:
    """Return why no tensor or object of a manifest can have a name, as a clause; empty: one can."""
    if len(name) > TEXT_BYTES:
        return f"has {len(name)} characters, at most {TEXT_BYTES} are possible"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is text with half a surrogate pair, which UTF-8 has no bytes for"
    return ""


def layouts(manifest: Manifest) -> list[FileLayout]:
    """Return where the units of each logical file lie."""
    targets = len(manifest.targets)
    return [FileLayout(manifest.uuid, index, file, targets) for index, file in enumerate(manifest.files)]


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of all logical files together."""
    return sum(file.size_bytes for file in manifest.files)


def _digest(body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(body).encode()


def _check_size(body: bytes) -> None:
    if len(body) > MANIFEST_BYTES:
        raise ManifestRefused(f"it has {len(body)} bytes, at most {MANIFEST_BYTES} are read")
    values = body.count(b",") + body.count(b":")
    if values > VALUES:
        raise ManifestRefused(f"it has about {values} values, at most {VALUES} are read")


def _check_head(manifest: Manifest) -> None:
    if manifest.version != VERSION:
        raise ValueError(f"version {manifest.version} is not {VERSION}")
    if not _UUID.fullmatch(manifest.uuid):
        raise ValueError(f"uuid {manifest.uuid[:40]!r} is not 32 hexadecimal digits")
    if not (math.isfinite(manifest.created_s) and 0 <= manifest.created_s < 1e12):
        raise ValueError(f"created_s {manifest.created_s} is no time")
    if manifest.step is not None and not 0 <= manifest.step < 1 << 62:
        raise ValueError(f"step {_shown(manifest.step)} is not from 0 to 2**62")
    if not 1 <= len(manifest.targets) <= TARGETS or manifest.targets[0] != ".":
        raise ValueError(f"{len(manifest.targets)} targets: 1 to {TARGETS} are possible, the first of them '.'")
    _check_names("target", manifest.targets)
    for url in manifest.targets[1:]:
        if "\0" in url or ".." in url.split("/") or not (paths.scheme_of(url) or url.startswith("/")):
            raise ValueError(f"target {url[:200]!r} is no absolute path and no URL")
    if len(manifest.facts) > FACTS:
        raise ValueError(f"{len(manifest.facts)} facts, at most {FACTS} are possible")
    for name, fact in manifest.facts.items():
        if len(name) > TEXT_BYTES or len(fact) > FACT_BYTES:
            raise ValueError(f"fact {name[:80]!r} is longer than {FACT_BYTES}")


def _check_names(kind: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if len(name) > TEXT_BYTES:
            raise ValueError(f"{kind} {name[:80]!r}... has {len(name)} characters, at most {TEXT_BYTES} are possible")
        if name in seen:
            raise ValueError(f"{kind} {name[:200]!r} is named twice")
        seen.add(name)


def _check_files(manifest: Manifest) -> None:
    if len(manifest.files) > FILES:
        raise ValueError(f"{len(manifest.files)} logical files, at most {FILES} are possible")
    _check_names("logical file", (file.name for file in manifest.files))
    names = {file.name for file in manifest.files}
    for index, file in enumerate(manifest.files):
        if not paths.is_clean(file.name):
            raise ValueError(f"logical file {file.name[:200]!r}: its name is no relative path without '..'")
        folder = paths.parent(file.name)
        while folder:
            if folder in names:
                raise ValueError(f"logical file {file.name[:200]!r} lies in {folder[:200]!r}, which is a file itself")
            folder = paths.parent(folder)
        try:
            _check_file(file, len(manifest.targets))
            FileLayout(manifest.uuid, index, file, len(manifest.targets))
        except ValueError as error:
            raise ValueError(f"logical file {file.name[:200]!r}: {error}") from error


def _check_file(file: LogicalFile, targets: int) -> None:
    """Numbers only, before anything is made as large as they say."""
    if not 0 <= file.size_bytes <= FILE_BYTES:
        raise ValueError(f"size {_shown(file.size_bytes)} is not from 0 to {FILE_BYTES}")
    unit = file.unit_bytes
    if not UNIT_BYTES_LEAST <= unit <= UNIT_BYTES_MOST or unit & (unit - 1):
        raise ValueError(f"unit of {_shown(unit)} bytes is no power of two from 1 to 64 MiB")
    if not 0 <= file.first_target < targets:
        raise ValueError(f"first target {_shown(file.first_target)} is not one of {targets}")
    if file.item_bytes not in ITEM_BYTES:
        raise ValueError(f"item of {_shown(file.item_bytes)} bytes is none of {ITEM_BYTES}")


def _check_tensors(manifest: Manifest) -> None:
    _check_names("tensor or blob", _owners(manifest))
    for tensor in manifest.tensors:
        if tensor.dtype not in BYTES_OF:
            raise ValueError(f"tensor {tensor.name[:200]!r}: dtype {tensor.dtype[:40]!r} is not known")
        try:
            check_cover(tensor)
        except ValueError as error:
            raise ValueError(f"tensor {tensor.name[:200]!r}: {error}") from error


def _owners(manifest: Manifest) -> list[str]:
    return [tensor.name for tensor in manifest.tensors] + [blob.name for blob in manifest.blobs]


def _segments(manifest: Manifest) -> Iterable[OwnedSegment]:
    for tensor in manifest.tensors:
        for chunk in tensor.chunks:
            end = chunk.offset_bytes + box_bytes(chunk.sizes, tensor.dtype)
            yield OwnedSegment(chunk.file, chunk.offset_bytes, end, tensor.name)
    for blob in manifest.blobs:
        yield OwnedSegment(blob.file, blob.offset_bytes, blob.offset_bytes + blob.size_bytes, blob.name)


def _check_segments(manifest: Manifest) -> None:
    """All lie within their logical files, and no two on the same bytes."""
    segments = []
    for segment in _segments(manifest):
        if not 0 <= segment.file < len(manifest.files):
            raise ValueError(f"{segment.owner[:200]!r}: there is no logical file {_shown(segment.file)}")
        size = manifest.files[segment.file].size_bytes
        if not 0 <= segment.begin_bytes <= segment.end_bytes <= size:
            raise ValueError(
                f"{segment.owner[:200]!r}: bytes {_shown(segment.begin_bytes)} to {_shown(segment.end_bytes)} are "
                f"not within logical file {segment.file} of {size} bytes"
            )
        if segment.begin_bytes < segment.end_bytes:
            segments.append(segment)
    segments.sort()
    for one, other in itertools.pairwise(segments):
        if one.file == other.file and other.begin_bytes < one.end_bytes:
            raise ValueError(
                f"{one.owner[:200]!r} and {other.owner[:200]!r} both own byte {other.begin_bytes} of logical file {one.file}"
            )


def _check_paths(manifest: Manifest) -> None:
    known = set(_owners(manifest))
    for name, path in manifest.paths.items():
        if name not in known:
            raise ValueError(f"path of {name[:200]!r}, which is neither tensor nor blob")
        if not 1 <= len(path) <= PATH_PARTS:
            raise ValueError(f"path of {name[:200]!r} has {len(path)} parts, 1 to {PATH_PARTS} are possible")
        for part in path:
            if len(part) > TEXT_BYTES if isinstance(part, str) else isinstance(part, bool) or abs(part) >= 1 << 62:
                raise ValueError(f"path of {name[:200]!r} has a part that is too large, or no text and no integer")


def _shown(number: int) -> str:
    """A number of any size; Python refuses to print one of more than 4300 digits."""
    return str(number) if abs(number) < 1 << 200 else "of more than 60 digits"
