"""The words of snapshots: ingredients and keys, captured roots, what lies in an image, the manifest."""

from __future__ import annotations

from typing import Literal

import msgspec

VERSION = 1

Method = Literal["overlay", "userns-overlay", "scan"]
"""How changes were captured: by an overlay as root, in a user namespace, or by comparing before and after."""
Kind = Literal["f", "d", "l", "w"]
"""file, directory, symbolic link, or whiteout: a name that the set-up removed."""
Compression = Literal["zstd", "lz4"]


#: Name of the ingredient of a set-up that is done inside an image: the identity of that image.
IMAGE = "image"


class Ingredient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that decides what the set-up commands produce."""

    name: str
    """Such as "command 1", "file requirements.txt", "python"; unique within a key."""
    digest: str
    """sha256 of its bytes, in lower-case hex."""
    shown: str
    """For people, at most `key.SHOWN_CHARACTERS`; never a credential."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The name of what a set-up produces."""

    digest: str
    """sha256 over names and digests of all ingredients, in lower-case hex."""
    ingredients: tuple[Ingredient, ...]
    """By name."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One ingredient in which two keys differ."""

    name: str
    here: str | None
    """What is shown of it in the first key; None: it has no such ingredient."""
    there: str | None
    """The same of the second key."""


class SnapshotPlatform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What compiled files depend on."""

    system: str
    """As `uname -s`, in lower case."""
    machine: str
    """As `uname -m`."""
    libc: str
    """Such as "glibc 2.36" or "musl"; "" if unknown."""
    python: str
    """Implementation and version, such as "cpython 3.11"."""
    soabi: str
    """Such as "cpython-311-x86_64-linux-gnu"; tells debug and free-threaded builds apart, too."""


class Root(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder whose changes are captured."""

    folder: str
    """Its number: `r<folder>` of the image holds what was added or changed, `w<folder>` whiteouts of what was removed."""
    path: str
    """Absolute, without symbolic links and "..": where it is restored."""
    changed: int = 0
    """Entries in `r<folder>`."""
    removed: int = 0
    """Whiteouts."""


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One line of a listing."""

    root: int
    """Index into `SnapshotManifest.roots`."""
    path: str
    """Relative to its root."""
    kind: Kind
    mode: int = 0
    """Permission bits of files and directories, without set-user-id and the like."""
    size_bytes: int = 0
    """Of files."""
    content: str = ""
    """xxh3_128 in hex of files (against accidents; the image as a whole has a sha256), the target of links."""


class Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One distribution that the set-up installed or replaced."""

    name: str
    version: str
    record_sha256: str = ""
    """Of its RECORD, which has the digests of its files; "" where it has none."""
    source: str = ""
    """Where it came from if not from an index: its direct_url without credentials."""
    editable: bool = False
    """Installed in place: its code is in `source` and not in the snapshot."""


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is said of a snapshot; `<key>/snapshot.json` in the store, written last."""

    schema: Literal["robust-snapshot"] = "robust-snapshot"
    version: int = VERSION
    key: str
    ingredients: tuple[Ingredient, ...]
    commands: tuple[str, ...]
    """As run, credentials blanked."""
    roots: tuple[Root, ...]
    platform: SnapshotPlatform
    image_sha256: str
    """Of the squashfs, which lies beside as `<image_sha256>.sqsh`."""
    image_bytes: int
    blocks_sha256: str = ""
    """Of the image's block map, which lies beside as `<image_sha256>.sqsh.blocks.json`; "": there is none."""
    compression: Compression
    listing_sha256: str
    """Of `listing.json` in the image, which has every file."""
    items: int
    """Lines of the listing."""
    content_bytes: int
    """Bytes of all files, unpacked."""
    has_whiteouts: bool
    """False: names were removed and no whiteouts could be made, so it can be extracted but not mounted."""
    packages: tuple[Package, ...] = ()
    """By name."""
    method: Method
    outside: tuple[str, ...] = ()
    """What the commands changed outside the roots, as far as seen, and was let pass."""
    dropped: tuple[str, ...] = ()
    """What was left out: sockets, devices, pipes."""
    pinned: bool
    """Whether all requirements name one version; others are resolved anew after a time."""
    built_unix_s: float
    took_s: float
    """Seconds the commands ran."""
    builder: str = ""
    """Host that built it."""
    signature: str = ""
    """HMAC-SHA256 with the store's token over all other fields, in hex; "": not signed."""
