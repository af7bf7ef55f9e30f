"""Publishing and fetching: nothing half is ever a snapshot, and wrong bytes are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from snapshot.environments import TREE
from snapshot.made import KEY, manifest_of

from robust_run.snapshot import catalog, fetch, lazy
from robust_run.snapshot.building import publish
from robust_run.snapshot.errors import SnapshotRefused
from robust_run.snapshot.pack import sha256_of
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}/store")


def image_of(folder: Path, content: bytes, **changes: object) -> tuple[SnapshotManifest, str]:
    path = folder / f"image-{hash(content):x}"
    path.write_bytes(content)
    digest, size_bytes = sha256_of(str(path))
    return manifest_of(image_sha256=digest, image_bytes=size_bytes, **changes), str(path)


def test_what_was_published_is_found_and_fetched_once(store: Store, tmp_path: Path) -> None:
    manifest, image = image_of(tmp_path, os.urandom(20_000_000))
    assert catalog.load(store, KEY.digest) is None
    assert publish(store, manifest, image) == manifest
    assert catalog.load(store, KEY.digest) == manifest
    assert catalog.keys(store) == [KEY.digest]
    path = fetch.fetch(store, manifest, str(tmp_path / "cache"))
    assert Path(path).read_bytes() == Path(image).read_bytes()
    store.remove(catalog.image_path(manifest))
    assert fetch.fetch(store, manifest, str(tmp_path / "cache")) == path
    assert sorted(os.listdir(os.path.dirname(path))) == sorted(
        os.path.basename(path) + end for end in ("", ".lock", ".ok")
    )


def test_the_first_manifest_stays_and_the_second_builder_uses_it(store: Store, tmp_path: Path) -> None:
    first, one = image_of(tmp_path, b"one" * 2000)
    second, two = image_of(tmp_path, b"two" * 2000)
    publish(store, first, one)
    assert publish(store, second, two) == first
    with pytest.raises(NotFound):
        store.size_bytes(catalog.image_path(second))
    assert publish(store, second, two, replace=True) == second
    assert catalog.load(store, KEY.digest) == second


def test_a_signed_store_takes_only_what_its_token_signed(store: Store, tmp_path: Path) -> None:
    manifest, image = image_of(tmp_path, b"x" * 5000)
    publish(store, manifest, image, token="theirs")
    with pytest.raises(SnapshotRefused, match="signature is not that of this store's token; build it again"):
        catalog.load(store, KEY.digest, token="ours")
    found = catalog.load(store, KEY.digest, token="theirs")
    assert found is not None and found.image_sha256 == manifest.image_sha256


def test_an_image_of_other_bytes_is_refused_and_not_kept(store: Store, tmp_path: Path) -> None:
    manifest, image = image_of(tmp_path, b"right" * 1000)
    publish(store, manifest, image)
    store.write_all(catalog.image_path(manifest), b"wrong" * 1000)
    with pytest.raises(SnapshotRefused, match=f"the manifest says {manifest.image_sha256}"):
        fetch.fetch(store, manifest, str(tmp_path / "cache"))
    assert [name for name in os.listdir(tmp_path / "cache/images") if not name.endswith(".lock")] == []


def test_an_image_that_is_cut_short_is_refused(store: Store, tmp_path: Path) -> None:
    manifest, image = image_of(tmp_path, b"right" * 1000)
    publish(store, manifest, image)
    store.write_all(catalog.image_path(manifest), b"right")
    with pytest.raises((SnapshotRefused, StoreError), match="truncated"):
        fetch.fetch(store, manifest, str(tmp_path / "cache"))


def test_an_image_that_was_touched_is_verified_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    manifest, image = image_of(tmp_path, b"right" * 1000)
    publish(store, manifest, image)
    path = fetch.fetch(store, manifest, str(tmp_path / "cache"))
    sealed = os.stat(path)
    os.chmod(path, 0o644)
    Path(path).write_bytes(b"wrong" * 1000)
    while os.stat(path).st_ctime_ns == sealed.st_ctime_ns:  # the clock of a file system is coarse
        os.utime(path)
    assert not fetch.is_sealed(path)
    assert Path(fetch.fetch(store, manifest, str(tmp_path / "cache"))).read_bytes() == b"right" * 1000


def test_with_a_block_map_each_block_is_verified_as_it_comes(store: Store, tmp_path: Path) -> None:
    content = os.urandom(19 << 20)
    _, image = image_of(tmp_path, content)
    blocks = lazy.make_map(image)
    manifest, _ = image_of(tmp_path, content, blocks_sha256=lazy.digest_of(blocks))
    publish(store, manifest, image, blocks=blocks)
    assert Path(fetch.fetch(store, manifest, str(tmp_path / "good"))).read_bytes() == content

    wrong = bytearray(content)
    wrong[17 << 20] ^= 1
    store.write_all(catalog.image_path(manifest), bytes(wrong))
    with pytest.raises(SnapshotRefused, match="its sha256 is not what the manifest says, as block 136 shows"):
        fetch.fetch(store, manifest, str(tmp_path / "cache"))

    Path(image).write_bytes(wrong)
    store.write_all(lazy.map_path(manifest), lazy.make_map(image))  # a map of the wrong bytes is not the manifest's
    with pytest.raises(SnapshotRefused, match=f"the manifest says {manifest.image_sha256}"):
        fetch.fetch(store, manifest, str(tmp_path / "cache"))
    assert [name for name in os.listdir(tmp_path / "cache/images") if not name.endswith(".lock")] == []


def test_a_manifest_under_the_name_of_another_key_is_refused(store: Store) -> None:
    other = "e" * 64
    from robust_run.snapshot.rules import manifest as manifests

    store.write_all(catalog.manifest_path(other), manifests.encode(manifest_of()))
    with pytest.raises(SnapshotRefused, match="it is of key"):
        catalog.load(store, other)
    for strange in ("../x", "", "E" * 64, "e" * 63):
        with pytest.raises(SnapshotRefused, match="is no key"):
            catalog.load(store, strange)


def test_several_fetch_the_same_image_at_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    manifest, image = image_of(tmp_path, os.urandom(3_000_000))
    publish(store, manifest, image)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch.fetch(store, manifest, str(tmp_path / "cache"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1 and len(found) == 4


_PUBLISH_AND_DIE = """
import os, sys; sys.path[:0] = sys.argv[1].split(':')
import msgspec
from robust_run.snapshot.building import publish
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.opening import open_store
store = open_store(sys.argv[2])
left = int(sys.argv[5])
def die_later(event, arguments):
    # every audited call of the file system is a moment at which the machine may stop
    global left
    if event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.truncate"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
manifest = msgspec.json.decode(sys.argv[3], type=SnapshotManifest)
publish(open_store(sys.argv[2] + "-warm"), manifest, sys.argv[4])  # imports all that is needed
sys.addaudithook(die_later)
publish(store, manifest, sys.argv[4])
print("published")
"""


def test_killed_at_any_point_of_publishing_there_is_no_snapshot_or_a_whole_one(tmp_path: Path) -> None:
    manifest, image = image_of(tmp_path, os.urandom(100_000))
    ends = []
    for point in range(40):
        url = str(tmp_path / f"store{point}")
        argv = [
            sys.executable,
            "-c",
            _PUBLISH_AND_DIE,
            str(TREE),
            url,
            msgspec.json.encode(manifest).decode(),
            image,
            str(point),
        ]
        done = subprocess.run(argv, capture_output=True, cwd="/", timeout=60, check=False)
        assert done.returncode in (0, -9), done.stderr
        store = open_store(url)
        found = catalog.load(store, KEY.digest)
        if found is not None:
            path = fetch.fetch(store, found, str(tmp_path / f"cache{point}"))
            assert sha256_of(path)[0] == manifest.image_sha256
        else:
            assert publish(store, manifest, image) == manifest  # the next builder is not in the way of what is left
        ends.append((done.returncode, found is not None))
        if done.returncode == 0:
            break
    assert ends[0] == (-9, False)
    assert ends[-1] == (0, True)
