"""A manifest as bytes: encoding, validation, and whether it is signed with the store's token. Pure."""

from __future__ import annotations

import hashlib
import hmac
import math
import re

import msgspec

from robust_run.decoders import json_decoder
from robust_run.snapshot import platforms, roots
from robust_run.snapshot.errors import SnapshotDamaged, SnapshotRefused
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import IMAGE, VERSION, SnapshotManifest, SnapshotPlatform

NAME = "snapshot.json"
LARGEST_BYTES = 64 << 20
_MOST = 20_000
_TEXT_CHARACTERS = 20_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DOMAIN = b"robust snapshot manifest 1\0"
_IMAGE_BYTES = 16 << 40
_LATEST_S = 1e11
"""A Unix time in the year 5138: calendars end at 9999."""
_DECODER = json_decoder(SnapshotManifest)


def encode(manifest: SnapshotManifest, token: str | None = None) -> bytes:
    """Return a manifest as it is stored, signed if the store has a token.

    Raises `SnapshotRefused` for what could not be read back.
    """
    signed = msgspec.structs.replace(manifest, signature=signature_of(manifest, token) if token else "")
    check(signed)
    data = msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n"
    if len(data) > LARGEST_BYTES:
        raise SnapshotRefused(f"the manifest has {len(data)} bytes: at most {LARGEST_BYTES} are written")
    return data


def decode(data: bytes, *, token: str | None = None, name: str = NAME) -> SnapshotManifest:
    """Read a manifest. With a token, one that is not signed with it is refused. `name` is for the message.

    Raises `SnapshotRefused` for all that can be wrong with it (`SnapshotDamaged` for all but a signature); never anything else.
    """
    if len(data) > LARGEST_BYTES:
        raise SnapshotDamaged(f"{name}: {len(data)} bytes; at most {LARGEST_BYTES} are read")
    try:
        manifest = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotDamaged(
            f"{name}: it is no manifest: {' '.join(str(error).split())[:300]}; build it again"
        ) from error
    try:
        if token:
            _check_signature(manifest, token)
    except SnapshotRefused as error:
        raise SnapshotRefused(f"{name}: {error}; build it again with --refresh-setup") from error
    try:
        check(manifest)
    except SnapshotRefused as error:
        raise SnapshotDamaged(f"{name}: {error}; build it again") from error
    return manifest


def check(manifest: SnapshotManifest) -> None:
    """Raise `SnapshotRefused` with the first thing in a manifest that cannot be."""
    reason = _what_is_wrong(manifest)
    if reason is not None:
        raise SnapshotRefused(reason)


def check_fits(manifest: SnapshotManifest, ours: SnapshotPlatform, expected_key: str | None = None) -> None:
    """Raise `SnapshotRefused` where a snapshot is of another key, or for another platform."""
    if expected_key is not None and manifest.key != expected_key:
        raise SnapshotRefused(f"it is of key {manifest.key}, asked for was {expected_key}")
    reason = platforms.mismatch(manifest.platform, ours)
    if reason is not None:
        raise SnapshotRefused(f"snapshot {manifest.key[:16]}: {reason}")


def is_of_image(manifest: SnapshotManifest) -> bool:
    """Whether a snapshot was built inside an image, and is of use only laid over that."""
    return any(item.name == IMAGE for item in manifest.ingredients)


def signature_of(manifest: SnapshotManifest, token: str) -> str:
    """Return the HMAC-SHA256 of all fields but the signature, in hex."""
    body = msgspec.json.encode(msgspec.structs.replace(manifest, signature=""))
    secret = hashlib.sha256(_DOMAIN + token.encode("utf-8", "surrogateescape")).digest()
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


def image_name(manifest: SnapshotManifest) -> str:
    """Return the name of the image's file, beside the manifest."""
    return f"{manifest.image_sha256}.sqsh"


def _check_signature(manifest: SnapshotManifest, token: str) -> None:
    if not manifest.signature:
        raise SnapshotRefused("it is not signed, and this store has a token")
    if not hmac.compare_digest(manifest.signature.encode(), signature_of(manifest, token).encode()):
        raise SnapshotRefused("its signature is not that of this store's token")


def _what_is_wrong(found: SnapshotManifest) -> str | None:
    if found.version != VERSION:
        return f"version {found.version} is not known here, only version {VERSION} is"
    for name in ("key", "image_sha256", "listing_sha256"):
        if not _DIGEST.fullmatch(getattr(found, name)):
            return f"{name} is not 64 hex digits in lower case"
    if found.blocks_sha256 and not _DIGEST.fullmatch(found.blocks_sha256):
        return "blocks_sha256 is not 64 hex digits in lower case"
    names = [item.name for item in found.ingredients]
    if names != sorted(set(names)) or key.digest_of(found.ingredients) != found.key:
        return "its key is not that of its ingredients"
    if not 0 < found.image_bytes <= _IMAGE_BYTES or not 0 <= found.content_bytes <= _IMAGE_BYTES:
        return f"image_bytes is {found.image_bytes}, content_bytes {found.content_bytes}: that cannot be"
    if not 0 <= found.items <= 2_000_000:
        return f"items is {found.items}: at most 2000000 are possible"
    if not all(math.isfinite(number) and 0 <= number <= _LATEST_S for number in (found.built_unix_s, found.took_s)):
        return "a time of it is no time"
    return _roots_wrong(found) or _texts_wrong(found)


def _roots_wrong(found: SnapshotManifest) -> str | None:
    if not 0 < len(found.roots) <= roots.MOST_ROOTS:
        return f"it has {len(found.roots)} roots: 1 to {roots.MOST_ROOTS} are possible"
    for index, root in enumerate(found.roots):
        if root.folder != str(index):
            return f"root {index} has the folder {root.folder[:20]!r}"
        is_whole_image = root.path == "/" and is_of_image(found)
        reason = None if is_whole_image else roots.what_is_wrong(root.path)
        if reason is not None:
            return f"root {root.path[:200]!r}: {reason}"
        if any(roots.is_within(root.path, other.path) for other in found.roots[:index]):
            return f"root {root.path[:200]!r} is in another, or twice"
        named = next((item for item in found.ingredients if item.name == f"root {root.folder}"), None)
        if named is None or named.digest != key.ingredient("", root.path).digest:
            return f"root {root.path[:200]!r} is not that of its key"
        if root.changed < 0 or root.removed < 0:
            return f"root {root.path[:200]!r} has fewer than no changes"
    return None


def _texts_wrong(found: SnapshotManifest) -> str | None:
    for name in ("ingredients", "commands", "packages", "outside", "dropped"):
        if len(getattr(found, name)) > _MOST:
            return f"{name} has more than {_MOST} entries"
    texts = [*found.commands, *found.outside, *found.dropped, found.builder, found.platform.soabi, found.platform.libc]
    if any(len(text) > _TEXT_CHARACTERS for text in texts):
        return f"a text of it has more than {_TEXT_CHARACTERS} characters"
    return None
