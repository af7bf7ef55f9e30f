"""Which distributions a set-up installed: names, versions and digests, read from their metadata. Nothing is imported or run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.snapshot.rules.key import blanked
from robust_run.snapshot.rules.types import Package, Root

_METADATA_BYTES = 1 << 20
_RECORD_BYTES = 256 << 20
_MOST = 20_000


class _Directory(msgspec.Struct, frozen=True):
    editable: bool = False


class _DirectUrl(msgspec.Struct, frozen=True):
    """What PEP 610 says of where a distribution came from, as far as needed."""

    url: str = ""
    dir_info: _Directory = _Directory()


def packages(stage: str, roots: Iterable[Root]) -> tuple[Package, ...]:
    """Return the distributions whose metadata is in the stage, by name."""
    found: list[Package] = []
    for root in roots:
        for folder, folders, _ in os.walk(os.path.join(stage, f"r{root.folder}")):
            for name in sorted(folders):
                if name.endswith((".dist-info", ".egg-info")) and len(found) < _MOST:
                    package = _package(os.path.join(folder, name))
                    if package is not None:
                        found.append(package)
            folders[:] = [name for name in folders if not name.endswith((".dist-info", ".egg-info", "__pycache__"))]
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))


def _package(folder: str) -> Package | None:
    metadata = _read(os.path.join(folder, "METADATA"), _METADATA_BYTES) or _read(
        os.path.join(folder, "PKG-INFO"), _METADATA_BYTES
    )
    head = metadata.partition(b"\n\n")[0].decode("utf-8", "replace")
    name, version = _field(head, "Name"), _field(head, "Version")
    if not name:
        return None
    record = _read(os.path.join(folder, "RECORD"), _RECORD_BYTES)
    direct = _direct_url(_read(os.path.join(folder, "direct_url.json"), _METADATA_BYTES))
    return Package(
        name=re.sub(r"[-_.]+", "-", name).lower()[:200],
        version=version[:200],
        record_sha256=hashlib.sha256(record).hexdigest() if record else "",
        source=blanked(direct.url)[:1000],
        editable=direct.dir_info.editable,
    )


def _direct_url(data: bytes) -> _DirectUrl:
    try:
        return json_decoder(_DirectUrl).decode(data) if data else _DirectUrl()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _DirectUrl()


def _field(head: str, name: str) -> str:
    match = re.search(rf"(?mi)^{name}:[ \t]*(\S.*)$", head)
    return match[1].strip() if match else ""


def _read(path: str, limit_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return b""
