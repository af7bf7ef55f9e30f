"""Making an image: the same tree gives the same bytes, hot files lie first, and the block map fits."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import BuildFailed, ImageRefused
from robust_run.prefetch.image import build, tree
from robust_run.prefetch.rules import sorting
from robust_run.prefetch.rules.types import QUANTUM_BYTES, HotKey, HotList, HotRange
from tests.prefetch.image.tools import Layer, layout, names_below, needs, small_tree


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("mksquashfs", "unsquashfs")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_the_same_tree_gives_the_same_image(tmp_path: Path, compression: build.Compression) -> None:
    source = small_tree(tmp_path)
    options = build.BuildOptions(compression=compression, mount_at="/opt/env")
    first = build.build(str(source), str(tmp_path / "one.sqsh"), options)
    for path in (source, *source.rglob("*")):
        os.utime(path, ns=(5, path.lstat().st_mtime_ns), follow_symlinks=False)  # read since, not changed
    second = build.build(
        str(source), str(tmp_path / "two.sqsh"), build.BuildOptions(compression, mount_at="/opt/env", threads=1)
    )
    assert first == second
    assert first.mount_at == "/opt/env"
    assert blockmap.decode((tmp_path / "one.sqsh.blocks.json").read_bytes()) == first
    assert {path.name for path in tmp_path.iterdir()} == {
        "source", "one.sqsh", "one.sqsh.blocks.json", "two.sqsh", "two.sqsh.blocks.json",
    }  # fmt: skip


def test_an_image_has_what_the_tree_has(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    build.build(str(source), str(tmp_path / "image.sqsh"))
    subprocess.run(
        ["unsquashfs", "-d", tmp_path / "out", tmp_path / "image.sqsh"], check=True, stdout=subprocess.DEVNULL
    )
    assert names_below(tmp_path / "out") == names_below(source)


def module(folder: Path) -> Path:
    """Make a package whose module was compiled long after it was written."""
    (folder / "package").mkdir(parents=True)
    source = folder / "package/module.py"
    source.write_text("value = 1\n")
    os.utime(source, (1_500_000_000, 1_500_000_000))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP, doraise=True)
    return source


def unpacked(image: Path, folder: Path) -> Path:
    subprocess.run(["unsquashfs", "-d", folder, image], check=True, stdout=subprocess.DEVNULL)
    return folder


def how_it_is_imported(folder: Path) -> str:
    argv = [
        sys.executable,
        "-B",
        "-v",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(folder)!r}); import package.module",
    ]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stderr


def test_what_was_compiled_in_the_tree_is_used_in_the_image(tmp_path: Path) -> None:
    module(tmp_path / "source")
    build.build(str(tmp_path / "source"), str(tmp_path / "image.sqsh"))
    said = how_it_is_imported(unpacked(tmp_path / "image.sqsh", tmp_path / "out"))
    assert "matches" in said and "module.py" in said
    assert "stale" not in said


def test_what_was_compiled_in_a_layer_is_used_in_the_image(tmp_path: Path) -> None:
    source = module(tmp_path / "source")
    [compiled] = (tmp_path / "source").rglob("*.pyc")
    layer = Layer().entry("package/module.py", source.read_bytes(), size=source.stat().st_size, mtime=1_500_000_000.7)
    layer.entry(str(compiled.relative_to(tmp_path / "source")), compiled.read_bytes(), size=compiled.stat().st_size)
    build.build(str(layout(tmp_path, layer)), str(tmp_path / "image.sqsh"), build.BuildOptions(machine="x86_64"))
    said = how_it_is_imported(unpacked(tmp_path / "image.sqsh", tmp_path / "out"))
    assert "matches" in said and "module.py" in said
    assert "stale" not in said


def test_the_same_layers_give_the_same_image(tmp_path: Path) -> None:
    layer = Layer().file("a/b/c", b"1").link("d", "a").folder("e", 0o700).hard_link("f", "a/b/c")
    place = str(layout(tmp_path, layer, Layer().file(".wh.e")))
    first, second = (
        build.build(place, str(tmp_path / f"{name}.sqsh"), build.BuildOptions(machine="x86_64"))
        for name in ("one", "two")
    )
    assert first == second
    out = unpacked(tmp_path / "two.sqsh", tmp_path / "out")
    assert {path.lstat().st_mtime for path in (out, *out.rglob("*"))} == {0.0}


def test_what_is_excluded_is_named_literally(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    for name in ("cache[1]", "cache1", "x*", "xy", "deep/cache[1]"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("x")
    options = build.BuildOptions(exclude=("cache[1]", "/x*", "usr/lib"))
    build.build(str(source), str(tmp_path / "image.sqsh"), options)
    found = {file.path for file in tree.packed_files(str(tmp_path / "image.sqsh"))}
    assert found == {'a "strange" name\\x', "cache1", "xy", "deep/cache[1]"}


def test_an_oci_layout_becomes_an_image(tmp_path: Path) -> None:
    place = layout(tmp_path, Layer().file("etc/a", b"1"), Layer().file("etc/.wh.a").file("etc/b", b"2"))
    build.build(str(place), str(tmp_path / "image.sqsh"), build.BuildOptions(machine="x86_64"))
    assert [file.path for file in tree.packed_files(str(tmp_path / "image.sqsh")) if "etc" in file.path] == ["etc/b"]


@pytest.mark.parametrize("compression", ["gzip", "xz", "lz4", "zstd"])
def test_the_files_of_an_image_are_found_in_any_compression(tmp_path: Path, compression: str) -> None:
    source = small_tree(tmp_path)
    image = tmp_path / "image.sqsh"
    done = subprocess.run(
        ["mksquashfs", source, image, "-comp", compression, "-quiet", "-no-progress"], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"mksquashfs here has no {compression}")
    expected = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and path.stat().st_size}
    found = {file.path for file in tree.packed_files(str(image))}
    assert found == {name for name in expected if not name.startswith("lib/")}


def test_hot_files_lie_first_in_their_order(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    for number in (31, 7, 19):
        (source / f"usr/lib/big_{number}").write_bytes(os.urandom(300_000))
    (source / 'odd "name"\\n').write_bytes(os.urandom(300_000))
    hot = ["usr/lib/big_31", 'odd "name"\\n', "usr/lib/big_7", "usr/lib/big_19"]
    build.build(str(source), str(tmp_path / "image.sqsh"), build.BuildOptions(hot_files=hot))
    packed = sorted(tree.packed_files(str(tmp_path / "image.sqsh")), key=lambda file: file.offset_bytes)
    assert [file.path for file in packed if file.size_bytes > 200_000][:4] == hot
    assert packed[0].path == hot[0]


def test_a_record_of_an_image_names_the_files_that_were_read(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    for number in range(4):
        (source / f"big_{number}").write_bytes(os.urandom(1 << 20))
    build.build(str(source), str(tmp_path / "image.sqsh"))
    packed = {file.path: file for file in tree.packed_files(str(tmp_path / "image.sqsh"))}

    def middle(name: str, first_ms: int) -> HotRange:
        return HotRange((packed[name].offset_bytes + packed[name].size_bytes // 2) // QUANTUM_BYTES, 1, first_ms, 1.0)

    ranges = tuple(sorted((middle("big_2", 5), middle("big_0", 40)), key=lambda found: found.first_touch_ms))
    hot = HotList(key=HotKey(image="i", launch="l", machine="m"), window_s=1.0, launches=1, ranges=ranges)
    assert sorting.hot_files(hot, packed.values())[0] == "big_2"
    assert {"big_2", "big_0"} == {name for name in sorting.hot_files(hot, packed.values()) if name.startswith("big")}


def test_a_damaged_directory_of_an_image_gives_our_error_only(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    image = tmp_path / "image.sqsh"
    build.build(str(source), str(image))
    data = bytearray(image.read_bytes())
    for at in range(96, len(data), max(1, len(data) // 400)):
        damaged = bytes(data[:at]) + bytes([data[at] ^ 0xFF]) + bytes(data[at + 1 :])
        image.write_bytes(damaged)
        try:
            assert len(list(tree.packed_files(str(image)))) < 1000
        except ImageRefused:
            continue


def test_what_a_killed_build_left_is_removed_by_the_next_and_one_that_runs_is_left_alone(tmp_path: Path) -> None:
    text = """if True:
        import os, sys
        from robust_run.prefetch.image.scratch import scratch_in
        with scratch_in(sys.argv[1]) as scratch:
            os.mkdir(scratch + "/tree")
            print(scratch, flush=True)
            sys.stdin.read()
    """
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    killed, running = (Path((builder.stdout or sys.stdin).readline().strip()) for builder in builders)
    builders[0].kill()
    builders[0].communicate()
    another = tmp_path / ".robust-image-another-machine-1"
    (another / "tree").mkdir(parents=True)
    assert killed.is_dir()
    build.build(str(small_tree(tmp_path)), str(tmp_path / "image.sqsh"))
    assert not killed.exists() and running.is_dir() and another.is_dir()
    builders[1].communicate()
    assert not running.exists()


def test_a_failed_build_leaves_what_was_there(tmp_path: Path) -> None:
    image = tmp_path / "image.sqsh"
    image.write_bytes(b"old")
    with pytest.raises(ImageRefused):
        build.build(str(layout(tmp_path, b"no tar at all" * 100)), str(image), build.BuildOptions(machine="x86_64"))
    assert image.read_bytes() == b"old"
    with pytest.raises(BuildFailed, match="No such file or directory"):
        build.build(str(small_tree(tmp_path)), str(tmp_path / "missing/image.sqsh"))


def test_an_image_in_its_own_tree_is_refused(tmp_path: Path) -> None:
    source = small_tree(tmp_path)
    with pytest.raises(ImageRefused, match="lies in the folder it is made of"):
        build.build(str(source), str(source / "image.sqsh"))


def test_a_sif_that_exists_is_described_by_its_window(tmp_path: Path) -> None:
    from tests.prefetch.image.test_identify import sif

    build.build(str(small_tree(tmp_path)), str(tmp_path / "image.sqsh"))
    payload = (tmp_path / "image.sqsh").read_bytes()
    (tmp_path / "image.sif").write_bytes(sif(payload, offset=36864))
    found = build.describe(str(tmp_path / "image.sif"))
    assert (found.offset_bytes, found.size_bytes) == (36864, len(payload))
    assert blockmap.identity(found) == blockmap.identity(build.describe(str(tmp_path / "image.sqsh")))
