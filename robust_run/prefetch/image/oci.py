"""An OCI layout (a folder, as `skopeo copy docker://... oci:FOLDER` makes it) → a root file system in a folder.

Follows the OCI image specification 1.1: image-layout.md, manifest.md, config.md, layer.md. Blobs are found by their digest and
must match it. Runs as any user: what a file cannot have here is in the `Survey` of it, or is not kept (see `losses`).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.description import DESCRIPTION, Description
from robust_run.prefetch.image.layers import Extraction
from robust_run.prefetch.image.names import LayerLimits, Whiteout, whiteouts_in
from robust_run.prefetch.image.survey import Survey
from robust_run.prefetch.image.unpacking import Packing

if TYPE_CHECKING:
    from concurrent.futures import Future

LARGEST_JSON_BYTES = 4 << 20
MOST_LAYERS = 512
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LAYER_TYPE = re.compile(
    r"application/vnd\.(oci\.image\.layer(\.nondistributable)?\.v1\.tar|docker\.image\.rootfs\.diff\.tar)([.+](?P<packing>gzip|zstd))?"
)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
_Progress = Callable[[int], None]
_Kind = TypeVar("_Kind")


class ImagePlatform(msgspec.Struct, frozen=True):
    """For which machines a manifest is."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to a blob."""

    digest: str
    size: int
    media_type: str = ""
    platform: ImagePlatform | None = None
    annotations: dict[str, str] = {}


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """`index.json`, or an index below it."""

    manifests: tuple[Descriptor, ...]


class ImageManifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """How the image wants to be run."""

    env: tuple[str, ...] | None = None
    working_dir: str | None = None


class Config(msgspec.Struct, frozen=True):
    """The part of an image's configuration that we use."""

    architecture: str = ""
    os: str = ""
    config: RunConfig | None = None


def extract(
    layout: str,
    folder: str,
    *,
    machine: str,
    tag: str | None = None,
    limits: LayerLimits | None = None,
    progress: _Progress | None = None,
) -> Survey:
    """Write an image's root file system into an empty folder that no other process writes. `machine`: as `uname -m` says it.

    Returns what the folder does not show, and what is not kept. `tag` chooses among several images
    (`org.opencontainers.image.ref.name`); `progress` gets bytes of layers since the last call.

    Raises `ImageRefused` for a damaged or hostile layout (the folder then holds a part), OSError where a disk fails.
    """
    manifest = _manifest(layout, machine, tag)
    if len(manifest.layers) > MOST_LAYERS:
        raise ImageRefused(f"{layout}: {len(manifest.layers)} layers; at most {MOST_LAYERS} are read")
    config = _decode(_verified(layout, manifest.config), Config, manifest.config.digest)
    extraction = Extraction(folder, limits or LayerLimits())
    _apply(layout, manifest.layers, extraction, limits or LayerLimits(), progress)
    run = config.config or RunConfig()
    described = Description(env=run.env or (), working_dir=run.working_dir or "/")
    extraction.write(DESCRIPTION, msgspec.json.encode(described) + b"\n")
    return extraction.finish()


def _apply(
    layout: str,
    layers: Sequence[Descriptor],
    extraction: Extraction,
    limits: LayerLimits,
    progress: _Progress | None,
) -> None:
    """Apply layers. The whiteouts of each are looked for while the one below it is applied: to find them takes as long."""
    from concurrent.futures import ThreadPoolExecutor  # a start imports this module, and has no use for it

    stopping = threading.Event()
    coming: Future[list[Whiteout]] | None = None
    with ThreadPoolExecutor(1) as beside:
        try:
            for number, layer in enumerate(layers):
                whiteouts = coming.result() if coming is not None else None
                if number + 1 < len(layers):
                    coming = beside.submit(_whiteouts, layout, layers[number + 1], limits, stopping)
                with open(_blob(layout, layer), "rb", buffering=0) as file:
                    packing = packing_of(layer.media_type)
                    extraction.apply(file, packing, layer.digest[7:], layer.size, progress, whiteouts=whiteouts)
        finally:
            stopping.set()


def _whiteouts(layout: str, layer: Descriptor, limits: LayerLimits, stopping: threading.Event) -> list[Whiteout]:
    with open(_blob(layout, layer), "rb", buffering=0) as file:
        return whiteouts_in(file, packing_of(layer.media_type), layer.digest[7:], layer.size, limits, stopping)


def packing_of(media_type: str) -> Packing:
    """Return how a layer is compressed. Raises `ImageRefused` for what is no layer."""
    found = _LAYER_TYPE.fullmatch(media_type)
    if found is None:
        raise ImageRefused(f"a layer of type {media_type[:100]!r} is unknown; encrypted layers must be decrypted first")
    packing = found.group("packing")
    return "gzip" if packing == "gzip" else "zstd" if packing == "zstd" else "none"


def _manifest(layout: str, machine: str, tag: str | None) -> ImageManifest:
    path = os.path.join(layout, "index.json")
    index = _decode(_read(path, LARGEST_JSON_BYTES), Index, path)
    for _depth in range(3):
        chosen = _choose(index.manifests, machine, tag, layout)
        data = _verified(layout, chosen)
        if b'"manifests"' not in data:
            return _decode(data, ImageManifest, chosen.digest)
        index, tag = _decode(data, Index, chosen.digest), None
    raise ImageRefused(f"{layout}: its indexes are nested too deep")


def _choose(manifests: tuple[Descriptor, ...], machine: str, tag: str | None, layout: str) -> Descriptor:
    fitting = [each for each in manifests if _fits(each, machine)]
    if tag is not None:
        fitting = [each for each in fitting if each.annotations.get("org.opencontainers.image.ref.name") == tag]
    if len(fitting) == 1:
        return fitting[0]
    tags = sorted({each.annotations.get("org.opencontainers.image.ref.name", "") for each in manifests} - {""})
    known = f" ({', '.join(tags[:10])})" if tags else ""
    raise ImageRefused(
        f"{layout}: {len(fitting)} of its {len(manifests)} images fit {machine} and tag {tag}: name one tag{known}"
    )


def _fits(descriptor: Descriptor, machine: str) -> bool:
    platform = descriptor.platform
    if platform is None or not platform.architecture:
        return True
    return platform.os in ("", "linux") and _MACHINES.get(platform.architecture, platform.architecture) == machine


def _blob(layout: str, descriptor: Descriptor) -> str:
    found = _DIGEST.fullmatch(descriptor.digest)
    if found is None or descriptor.size < 0:
        raise ImageRefused(
            f"{layout}: digest {descriptor.digest[:100]!r} or its size cannot be; only sha256 is known here"
        )
    path = os.path.join(layout, "blobs", "sha256", found.group(1))
    if not os.path.isfile(path):
        raise ImageRefused(f"{layout}: blob {descriptor.digest} is missing; copy the layout again")
    return path


def _verified(layout: str, descriptor: Descriptor) -> bytes:
    data = _read(_blob(layout, descriptor), LARGEST_JSON_BYTES)
    if hashlib.sha256(data).hexdigest() != descriptor.digest[7:]:
        raise ImageRefused(f"{layout}: blob {descriptor.digest} is damaged; copy the layout again")
    return data


def _read(path: str, limit_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ImageRefused(f"{path}: {error.strerror}: is it an OCI layout?") from error
    if len(data) > limit_bytes:
        raise ImageRefused(f"{path}: more than {limit_bytes} bytes; that many are not read")
    return data


def _decode(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    try:
        return json_decoder(kind).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ImageRefused(f"{name}: {' '.join(str(error).split())[:300]}; copy the layout again") from error
