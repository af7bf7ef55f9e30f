"""The cache of blocks: shared, crash-safe, and not to be led astray by what lies in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefetch.images import SMALL_BLOCK, make_image
from prefetch.private_mounts import privately

from robust_run.prefetch import blockmap, pruning
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import CacheRefused
from robust_run.prefetch.rules.types import BlockMap

BOOT, NEXT_BOOT = b"1" * 36, b"2" * 36
COUNT = 4


@pytest.fixture(name="image")
def _image(tmp_path: Path) -> tuple[bytes, BlockMap]:
    path, block_map = make_image(tmp_path, COUNT * SMALL_BLOCK - 7, block_bytes=SMALL_BLOCK)
    return path.read_bytes(), block_map


def block(data: bytes, index: int) -> bytes:
    return data[index * SMALL_BLOCK : (index + 1) * SMALL_BLOCK]


def test_a_block_is_there_for_all_once_it_was_put(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    data, block_map = image
    ours, others = Cache(str(tmp_path / "c"), block_map), Cache(str(tmp_path / "c"), block_map)
    assert not others.have(3)
    assert ours.put(3, block(data, 3))
    assert others.have(3)
    assert others.read(3 * SMALL_BLOCK, SMALL_BLOCK) == block(data, 3)
    assert (others.present(), others.complete) == (1, False)
    for index in range(3):
        ours.put(index, block(data, index))
    assert others.complete
    assert Path(others.path).read_bytes() == data
    assert os.stat(others.folder).st_mode & 0o077 == 0
    ours.close()
    others.close()


def test_an_empty_cache_takes_no_space(tmp_path: Path) -> None:
    _path, block_map = make_image(tmp_path, 64 * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
    cache = Cache(str(tmp_path / "c"), block_map)
    assert os.stat(cache.path).st_size == 64 * SMALL_BLOCK
    assert os.stat(cache.path).st_blocks == 0
    cache.close()


def test_after_another_boot_a_block_is_verified_before_it_is_trusted(
    tmp_path: Path, image: tuple[bytes, BlockMap]
) -> None:
    data, block_map = image
    before = Cache(str(tmp_path / "c"), block_map, boot=BOOT)
    before.put(0, block(data, 0))
    before.put(1, block(data, 1))
    path = Path(before.path)
    before.close()
    with path.open("r+b") as file:  # the byte of block 1 reached the disk, its data did not
        file.seek(SMALL_BLOCK)
        file.write(bytes(SMALL_BLOCK))
    same = Cache(str(tmp_path / "c"), block_map, boot=BOOT)
    assert same.have(1)
    same.close()
    after = Cache(str(tmp_path / "c"), block_map, boot=NEXT_BOOT)
    assert after.present() == 0
    assert [after.have(index) for index in range(COUNT)] == [True, False, False, False]
    assert after.present() == 1
    after.close()


def test_verify_forgets_what_has_changed(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    data, block_map = image
    cache = Cache(str(tmp_path / "c"), block_map)
    for index in range(COUNT):
        cache.put(index, block(data, index))
    with open(cache.path, "r+b") as file:
        file.write(b"not what it was")
    assert cache.verify() == [0]
    assert [cache.have(index) for index in range(COUNT)] == [False, True, True, True]
    cache.close()


def test_a_claim_keeps_other_processes_away_until_it_is_released(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    _data, block_map = image
    cache = Cache(str(tmp_path / "c"), block_map)
    (tmp_path / "map.json").write_bytes(blockmap.encode(block_map))
    script = (
        "import sys; from robust_run.prefetch import blockmap; from robust_run.prefetch.cache import Cache;"
        "c = Cache(sys.argv[1], blockmap.decode(open(sys.argv[2], 'rb').read())); print(c.claim(1, 2), c.claim(3, 1))"
    )

    def from_another_process() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "c"), str(tmp_path / "map.json")]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    assert cache.claim(2, 1)
    assert from_another_process() == "False True"
    cache.release(2, 1)
    assert from_another_process() == "True True"
    cache.close()


@pytest.mark.parametrize("name", ["image", "have", "sums", "in_use", "setup", "map.json"])
def test_a_link_in_the_folder_is_refused(tmp_path: Path, image: tuple[bytes, BlockMap], name: str) -> None:
    _data, block_map = image
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "c" / blockmap.identity(block_map)
    folder.mkdir(parents=True, mode=0o700)
    (folder / name).symlink_to(victim)
    with pytest.raises(CacheRefused, match=f"{name}: it is a symbolic link: remove it"):
        Cache(str(tmp_path / "c"), block_map)
    assert victim.read_bytes() == b"precious"


def test_a_second_name_of_another_file_is_refused(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    _data, block_map = image
    (tmp_path / "victim").write_bytes(b"precious")
    folder = tmp_path / "c" / blockmap.identity(block_map)
    folder.mkdir(parents=True, mode=0o700)
    os.link(tmp_path / "victim", folder / "image")
    with pytest.raises(CacheRefused, match="not a plain file of ours"):
        Cache(str(tmp_path / "c"), block_map)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_pipe_in_the_folder_is_refused_and_does_not_hang(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    _data, block_map = image
    folder = tmp_path / "c" / blockmap.identity(block_map)
    folder.mkdir(parents=True, mode=0o700)
    os.mkfifo(folder / "image")
    with pytest.raises(CacheRefused):
        Cache(str(tmp_path / "c"), block_map)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    _data, block_map = image
    folder = tmp_path / "c" / blockmap.identity(block_map)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(CacheRefused, match="only we can write"):
        Cache(str(tmp_path / "c"), block_map)


def test_a_root_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheRefused, match="--image-cache") as caught:
        Cache(str(tmp_path / "file"), image[1])
    assert "\n" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(have=st.binary(max_size=100), length=st.integers(0, 5 * SMALL_BLOCK))
def test_whatever_the_files_say_only_good_blocks_are_served(
    tmp_path: Path, image: tuple[bytes, BlockMap], have: bytes, length: int
) -> None:
    data, block_map = image
    cache = Cache(str(tmp_path / "c"), block_map, boot=BOOT)
    cache.close()
    folder = Path(cache.folder)
    (folder / "have").write_bytes(have)
    with (folder / "image").open("r+b") as file:
        file.truncate(length)
    found = Cache(str(tmp_path / "c"), block_map, boot=NEXT_BOOT)
    assert os.stat(found.path).st_size == len(data)
    for index in range(COUNT):
        assert not found.have(index) or found.read(index * SMALL_BLOCK, SMALL_BLOCK) == block(data, index)
    assert found.put(0, block(data, 0))
    assert found.have(0)
    found.close()


@privately
def test_on_a_full_disk_nothing_is_kept_and_nothing_lies(tmp_path: Path, image: tuple[bytes, BlockMap]) -> None:
    data, block_map = image
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)], check=True, timeout=20)
    cache = Cache(str(small), block_map)
    kept = [cache.put(index, block(data, index)) for index in range(COUNT)]
    assert kept == [True, True, False, False]
    assert [cache.have(index) for index in range(COUNT)] == kept
    cache.close()


@privately
def test_a_disk_that_takes_not_even_the_lists_is_refused_with_its_numbers(
    tmp_path: Path, image: tuple[bytes, BlockMap]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)], check=True, timeout=20)
    with suppress(OSError), (small / "filler").open("wb", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(4096))
    words = r"No space left on device \(0 of 0 MiB and \d+ of \d+ inodes are free\): blocks cannot be kept there"
    with pytest.raises(CacheRefused, match=words):
        Cache(str(small), image[1])


def test_pruning_removes_the_longest_unused_and_nothing_that_is_in_use(tmp_path: Path) -> None:
    caches = []
    for number in range(3):
        path, block_map = make_image(tmp_path, (number + 1) * SMALL_BLOCK, block_bytes=SMALL_BLOCK)
        cache = Cache(str(tmp_path / "c"), block_map)
        for index in range(block_map.blocks):
            cache.put(index, block(path.read_bytes(), index))
        os.utime(os.path.join(cache.folder, "have"), (number, number))
        caches.append(cache)
    used, idle, newest = caches
    idle.close()
    newest.close()
    removed = pruning.prune(str(tmp_path / "c"), keep_bytes=3 * SMALL_BLOCK)
    assert [found.identity for found in removed] == [os.path.basename(idle.folder)]
    assert {found.identity for found in pruning.cached_images(str(tmp_path / "c"))} == {
        os.path.basename(cache.folder) for cache in (used, newest)
    }
    used.close()


def test_what_pruning_keeps_is_decided_by_age_alone() -> None:
    images = [pruning.CachedImage(identity=str(age), stored_bytes=10, used_s=age) for age in range(5)]
    assert [image.identity for image in pruning.choose(images, 25)] == ["0", "1", "2"]
    assert [image.identity for image in pruning.choose(images, 25, frozenset("1"))] == ["0", "2", "3"]
    assert pruning.choose(images, 50) == []


def test_what_was_unpacked_with_folders_that_may_not_be_written_is_removed_by_who_owns_them(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "closed/deeper").mkdir(parents=True)
    (tree / "closed/deeper/f").write_text("x")
    (tree / "closed/way").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir(mode=0o500)
    for folder in (tree / "closed/deeper", tree / "closed", tree):
        folder.chmod(0o500)
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    script = (
        "import os, sys; from robust_run.prefetch.pruning import remove_tree\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "remove_tree(sys.argv[1])"
    )
    for path in (tmp_path, tmp_path / "outside", tree, *tree.rglob("*")):
        os.chown(path, owner, -1, follow_symlinks=False)
    for above in tmp_path.parents:
        if os.geteuid() == 0 and str(above).startswith("/tmp/"):
            above.chmod(0o755)
    subprocess.run([sys.executable, "-c", script, str(tree)], check=True, timeout=60)
    assert not tree.exists()
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o500
