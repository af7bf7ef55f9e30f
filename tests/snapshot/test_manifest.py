"""Manifests and listings: what is written can be read, and nothing hostile gets through or raises anything but our error."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot.made import KEY, manifest_of

from robust_run.snapshot import platforms, restoring
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import RestoreRefused, SnapshotRefused
from robust_run.snapshot.restore.in_place import copy_over
from robust_run.snapshot.rules import key, listing, manifest
from robust_run.snapshot.rules.types import Ingredient, Item, Key, Kind, Root, SnapshotManifest
from robust_run.store.opening import open_store

FILE = Item(root=0, path="a/b", kind="f", mode=0o644, size_bytes=1, content="0" * 32)
FOLDER = Item(root=0, path="a", kind="d", mode=0o755)


def listing_of(*items: Item) -> tuple[bytes, SnapshotManifest]:
    data = listing.encode(items)
    return data, manifest_of(listing_sha256=hashlib.sha256(data).hexdigest(), items=len(items))


def test_a_manifest_is_read_as_it_was_written() -> None:
    made = manifest_of()
    assert manifest.decode(manifest.encode(made)) == made
    signed = manifest.decode(manifest.encode(made, "token"), token="token")
    assert msgspec.structs.replace(signed, signature="") == made


def of_image(*ingredients: Ingredient) -> SnapshotManifest:
    made = key.make([key.ingredient("root 0", "/"), *ingredients])
    return manifest_of(key=made.digest, ingredients=made.ingredients, roots=(Root(folder="0", path="/", changed=1),))


def test_only_in_an_image_all_of_it_is_captured() -> None:
    made = of_image(key.ingredient("image", "a" * 64))
    assert manifest.decode(manifest.encode(made)) == made
    with pytest.raises(SnapshotRefused, match="root '/': it belongs to the system"):
        manifest.encode(of_image(key.ingredient("base image", "a" * 64)))


def test_what_was_built_in_an_image_is_laid_over_nothing_else(tmp_path: Path) -> None:
    made = of_image(key.ingredient("image", "a" * 64))
    plan = plan_of(made)
    options = restoring.RestoreOptions(cache=str(tmp_path / "cache"))
    with pytest.raises(SnapshotRefused, match="built inside an image: restore it with --image"):
        restoring.restore(plan, made, open_store(str(tmp_path)), options)
    with pytest.raises(RestoreRefused, match="built inside an image"):
        copy_over(made, [], str(tmp_path))


def plan_of(made: SnapshotManifest) -> BuildPlan:
    setup = CaptureSetup(
        commands=("x",), cwd="/", roots=made.roots, environment={}, python=("python",), work_folders=()
    )
    return BuildPlan(
        key=Key(digest=made.key, ingredients=made.ingredients), setup=setup, platform=made.platform, pinned=True
    )


def test_the_wrong_token_or_none_is_refused_with_the_reason() -> None:
    made = manifest_of()
    with pytest.raises(SnapshotRefused, match="its signature is not that of this store's token"):
        manifest.decode(manifest.encode(made, "other"), token="token")
    with pytest.raises(SnapshotRefused, match="it is not signed, and this store has a token"):
        manifest.decode(manifest.encode(made), token="token")


def test_one_changed_field_breaks_the_signature() -> None:
    data = manifest.encode(manifest_of(), "token").replace(b'"took_s": 1.0', b'"took_s": 2.0')
    with pytest.raises(SnapshotRefused, match="signature"):
        manifest.decode(data, token="token")


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "version 2"),
    ({"key": "../../etc"}, "key is not 64 hex"),
    ({"key": "c" * 64}, "its key is not that of its ingredients"),
    ({"image_sha256": "A" * 64}, "image_sha256"),
    ({"image_bytes": 0}, "image_bytes"),
    ({"image_bytes": 1 << 60}, "image_bytes"),
    ({"content_bytes": -1}, "content_bytes"),
    ({"items": 1 << 40}, "items"),
    ({"roots": ()}, "0 roots"),
    ({"roots": (Root(folder="0", path="/"),)}, "belongs to the system"),
    ({"roots": (Root(folder="0", path="/opt/../etc"),)}, "not absolute and plain"),
    ({"roots": (Root(folder="../x", path="/opt/env"),)}, "has the folder"),
    ({"roots": (Root(folder="0", path="/opt"), Root(folder="1", path="/opt/env"))}, "is in another"),
    ({"ingredients": KEY.ingredients[:1], "key": key.make(KEY.ingredients[:1]).digest}, "is not that of its key"),
    ({"built_unix_s": -1.0}, "no time"),
    ({"built_unix_s": 1e300}, "no time"),
    ({"commands": ("x" * 30_000,)}, "more than 20000 characters"),
    ({"ingredients": (*KEY.ingredients, *KEY.ingredients)}, "not that of its ingredients"),
]


@pytest.mark.parametrize(("change", "reason"), HOSTILE)
def test_hostile_manifests_are_refused_when_read_and_when_written(change: dict[str, Any], reason: str) -> None:
    made = manifest_of(**change)
    with pytest.raises(SnapshotRefused, match=reason):
        manifest.decode(msgspec.json.encode(made))
    with pytest.raises(SnapshotRefused, match=reason):
        manifest.encode(made)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(SnapshotRefused):
        manifest.decode(data)
    with pytest.raises(SnapshotRefused):
        listing.decode(data, manifest_of(listing_sha256=hashlib.sha256(data).hexdigest()))


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_a_damaged_manifest_is_refused_or_still_says_something_that_can_be(at: int, change: bytes) -> None:
    data = bytearray(manifest.encode(manifest_of()))
    at %= len(data)
    data[at : at + len(change)] = change
    try:
        manifest.check(manifest.decode(bytes(data)))
    except SnapshotRefused:
        return


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(SnapshotRefused):
        manifest.decode(b'{"key":' * 200_000)


def test_another_key_or_platform_is_refused_with_the_reason() -> None:
    ours = platforms.here().platform
    manifest.check_fits(manifest_of(), ours, KEY.digest)
    with pytest.raises(SnapshotRefused, match="asked for was dddd"):
        manifest.check_fits(manifest_of(), ours, "d" * 64)
    changes = {
        "machine": "riscv64",
        "soabi": "cpython-399",
        "libc": "musl 1.2",
        "python": "cpython 2.7",
        "system": "plan9",
    }
    for name, value in changes.items():
        foreign = msgspec.structs.replace(ours, **{name: value})
        with pytest.raises(SnapshotRefused, match="it was built"):
            manifest.check_fits(manifest_of(platform=foreign), ours)


def test_a_newer_libc_runs_what_an_older_one_built_and_not_the_reverse() -> None:
    old, new = (msgspec.structs.replace(platforms.here().platform, libc=f"glibc 2.{minor}") for minor in (9, 36))
    assert platforms.mismatch(old, new) is None
    assert platforms.mismatch(new, old) == "it was built on glibc 2.36, this is older: glibc 2.9"


def test_a_listing_is_read_as_it_was_written() -> None:
    items = [
        FOLDER,
        FILE,
        Item(root=0, path="a/new\nline", kind="l", content="../../x"),
        Item(root=0, path="a", kind="w"),
    ]
    data, made = listing_of(*items)
    assert listing.decode(data, made) == items


@pytest.mark.parametrize(
    "items",
    [
        [msgspec.structs.replace(FILE, path="../b")],
        [msgspec.structs.replace(FILE, path="/etc/passwd")],
        [msgspec.structs.replace(FILE, path="a/../../b")],
        [msgspec.structs.replace(FILE, path="a//b")],
        [FOLDER, FILE, FILE],
        [FILE],
        [Item(root=0, path="a", kind="l", content="/etc"), FILE],
        [FOLDER, msgspec.structs.replace(FILE, root=1)],
        [FOLDER, msgspec.structs.replace(FILE, mode=0o4755)],
        [FOLDER, msgspec.structs.replace(FILE, size_bytes=-1)],
        [FOLDER, msgspec.structs.replace(FILE, content="")],
        [Item(root=0, path="a", kind="l", content="")],
    ],
)
def test_a_listing_that_leaves_its_root_or_contradicts_itself_is_refused(items: list[Item]) -> None:
    data, made = listing_of(*items)
    with pytest.raises(SnapshotRefused, match=r"listing\.json"):
        listing.decode(data, made)


def test_a_listing_of_another_digest_or_length_is_refused() -> None:
    data, made = listing_of(FOLDER, FILE)
    with pytest.raises(SnapshotRefused, match="its sha256"):
        listing.decode(data + b" ", made)
    with pytest.raises(SnapshotRefused, match="has 2 items"):
        listing.decode(data, msgspec.structs.replace(made, items=3))


@given(st.lists(st.tuples(st.sampled_from(("w", "f", "a/w", 'q"w"', "x")), st.sampled_from("wfdl")), max_size=20))
def test_removed_names_are_found_without_decoding_the_rest(pairs: list[tuple[str, Kind]]) -> None:
    items = [Item(0, f"{path}{number}", kind) for number, (path, kind) in enumerate(pairs)]
    found = listing.removed(listing.encode(items), manifest_of())
    assert found == [item for item in items if item.kind == "w"]


def test_a_removed_name_that_leaves_its_root_is_refused() -> None:
    with pytest.raises(SnapshotRefused, match="stays in its root"):
        listing.removed(listing.encode([Item(0, "../x", "w")]), manifest_of())


def test_what_is_shown_of_ingredients_is_no_part_of_the_key() -> None:
    shown = tuple(Ingredient(name=item.name, digest=item.digest, shown="") for item in KEY.ingredients)
    assert key.digest_of(shown) == KEY.digest
