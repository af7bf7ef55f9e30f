"""Real mounts, and unpacking, in namespaces that end with the test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from robust_run.mounts import squashfs
from robust_run.mounts.errors import MountRefused
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import ServerFailed
from robust_run.prefetch.image import build
from robust_run.prefetch.mount import unpack, warm
from robust_run.prefetch.rules.types import BlockMap
from robust_run.prefetch.server.config import ServeOptions
from tests.prefetch.image.test_identify import sif
from tests.prefetch.image.tools import names_below, needs, python_path, small_tree
from tests.prefetch.private_mounts import privately

_OPTIONS = ServeOptions()


def make(tmp_path: Path) -> tuple[Path, Path, BlockMap]:
    needs("mksquashfs")
    source = small_tree(tmp_path)
    image = tmp_path / "image.sqsh"
    return source, image, build.build(str(source), str(image), build.BuildOptions(compression="lz4"))


def needs_loop() -> None:
    if os.geteuid() or not Path("/dev/loop-control").exists():
        pytest.skip("loop devices are for root, and this machine may have none")


def in_sif(image: Path) -> Path:
    path = image.with_suffix(".sif")
    path.write_bytes(sif(image.read_bytes(), offset=36 << 10))
    return path


@privately
def test_the_kernel_mounts_an_image_and_a_window_of_a_file(tmp_path: Path) -> None:
    needs_loop()
    source, image, _block_map = make(tmp_path)
    for name, path, offset in (("whole", image, 0), ("window", in_sif(image), 36 << 10)):
        folder = tmp_path / name
        folder.mkdir()
        squashfs.by_kernel(str(path), str(folder), offset_bytes=offset)
        assert names_below(folder) == names_below(source)


@privately
def test_squashfuse_mounts_an_image_and_a_window_of_a_file(tmp_path: Path) -> None:
    needs("squashfuse_ll")
    source, image, _block_map = make(tmp_path)
    for name, path, offset in (("whole", image, 0), ("window", in_sif(image), 36 << 10)):
        folder = tmp_path / name
        folder.mkdir()
        process = squashfs.by_squashfuse("squashfuse_ll", str(path), str(folder), offset_bytes=offset)
        assert names_below(folder) == names_below(source)
        process.kill()
        process.wait(30)


@privately
def test_what_is_no_image_is_refused_in_one_line(tmp_path: Path) -> None:
    needs_loop()
    needs("squashfuse_ll")
    bad = tmp_path / "bad"
    bad.write_bytes(b"hsqs" + bytes(100_000))
    for mount in (
        lambda: squashfs.by_kernel(str(bad), str(tmp_path)),
        lambda: squashfs.by_squashfuse("squashfuse_ll", str(bad), str(tmp_path)),
    ):
        with pytest.raises(MountRefused, match="mount it") as caught:
            mount()
        assert "\n" not in str(caught.value)


def test_facts_are_found_and_nothing_stays_mounted(tmp_path: Path) -> None:
    script = (
        "import os, sys, msgspec\nfrom robust_run.mounts.facts import gather\n"
        "print(msgspec.json.encode(gather(sys.argv[1], os.environ)).decode(), os.listdir(sys.argv[1]))"
    )
    env = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", script, tmp_path], env=env, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(" []")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_an_image_that_apptainer_mounted_is_known(tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.touch()
    (tmp_path / "link.sif").symlink_to(image)
    env = {"APPTAINER_CONTAINER": str(image)}
    assert warm.mounted_image(env, str(tmp_path / "link.sif")) == "/"
    assert warm.mounted_image(env, str(tmp_path / "other.sif")) is None
    assert warm.mounted_image(env, "https://host/a.sif") is None
    assert warm.mounted_image({}, str(image)) is None


def test_an_image_is_unpacked_once_for_all(tmp_path: Path) -> None:
    needs("unsquashfs")
    source, image, block_map = make(tmp_path)
    caches = [Cache(str(tmp_path / "cache"), block_map) for _ in range(3)]
    leftover = Path(caches[0].folder) / "tree.partial-killed"
    leftover.mkdir()
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda cache=cache: found.append(unpack.ensure(cache, str(image), "unsquashfs", _OPTIONS, 60.0))
        )
        for cache in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert found == [unpack.folder(caches[0])] * 3
    assert names_below(Path(found[0])) == names_below(source)
    assert not leftover.exists()
    inode = os.stat(found[0]).st_ino
    image.unlink()
    assert os.stat(unpack.ensure(caches[0], str(image), "unsquashfs", _OPTIONS, 60.0)).st_ino == inode
    for cache in caches:
        cache.close()


def test_an_image_whose_blocks_are_wrong_is_never_unpacked(tmp_path: Path) -> None:
    needs("unsquashfs")
    _source, image, block_map = make(tmp_path)
    data = bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(data)
    cache = Cache(str(tmp_path / "cache"), block_map)
    with pytest.raises(ServerFailed, match=r"image\.sqsh"):
        unpack.ensure(cache, str(image), "unsquashfs", _OPTIONS, 60.0)
    assert not [name for name in os.listdir(cache.folder) if name.startswith("tree")]
    cache.close()


def test_what_only_looks_like_an_image_is_not_unpacked(tmp_path: Path) -> None:
    needs("unsquashfs")
    bad = tmp_path / "bad.sqsh"
    bad.write_bytes(b"hsqs" + bytes(100_000))
    cache = Cache(str(tmp_path / "cache"), blockmap.make(str(bad)))
    with pytest.raises(MountRefused, match="unsquashfs ended with"):
        unpack.ensure(cache, str(bad), "unsquashfs", _OPTIONS, 60.0)
    assert not [name for name in os.listdir(cache.folder) if name.startswith("tree")]
    cache.close()
