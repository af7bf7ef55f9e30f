"""Images that other tools have made, each with the real tool: what is in them, and what is said of those we do not read."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image import build, oci
from tests.prefetch.image.entries import entries_of
from tests.prefetch.image.tools import TAG, Layer, layout, needs

OPTIONS = build.BuildOptions(machine="x86_64", tag=TAG)


def run(folder: Path, *words: str | Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def built(source: Path, options: build.BuildOptions = OPTIONS) -> Path:
    """Build an image and return what is in it, unpacked."""
    needs("mksquashfs", "unsquashfs")
    image, out = source.with_name(f"{source.name}.sqsh"), source.with_name(f"{source.name}.out")
    build.build(str(source), str(image), options)
    run(source.parent, "unsquashfs", "-q", "-n", "-d", out, image)
    return out


def two_layers(folder: Path) -> Path:
    below = Layer().folder("etc").file("etc/a", b"old").file("etc/b", b"x", 0o4755).link("lib", "usr/lib")
    below.file("usr/lib/x", b"x" * 100_000)
    above = Layer().file("etc/a", b"new").file("etc/.wh.b").hard_link("again", "usr/lib/x")
    return layout(folder, below, above, packing="+gzip", Env=["A=1"])


@pytest.mark.parametrize("more", ["", "--dest-compress-format zstd", "--dest-compress --dest-compress-level 1"])
def test_a_layout_that_skopeo_copied_gives_the_same_image(tmp_path: Path, more: str) -> None:
    needs("skopeo")
    source = two_layers(tmp_path)
    run(
        tmp_path,
        "skopeo",
        "--insecure-policy",
        "copy",
        "-q",
        f"oci:{source}:{TAG}",
        f"oci:copy:{TAG}",
        *shlex.split(more),
    )
    assert entries_of(built(tmp_path / "copy")) == entries_of(built(source))


@pytest.mark.parametrize(
    ("kind", "place"), [("docker-archive", "a.tar:x:t"), ("oci-archive", "a.tar:t"), ("dir", "a.tar")]
)
def test_what_is_no_layout_is_refused_with_the_command_that_makes_one_of_it(
    tmp_path: Path, kind: str, place: str
) -> None:
    needs("skopeo")
    source = two_layers(tmp_path)
    run(tmp_path, "skopeo", "--insecure-policy", "copy", "-q", f"oci:{source}:{TAG}", f"{kind}:{place}")
    with pytest.raises(ImageRefused, match="skopeo copy"):
        build.build(str(tmp_path / "a.tar"), str(tmp_path / "i.sqsh"))
    assert not (tmp_path / "i.sqsh").exists()


@pytest.mark.parametrize("form", ["gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix"])
def test_sparse_files_of_gnu_tar_are_whole(tmp_path: Path, form: str) -> None:
    needs("tar")
    with (tmp_path / "holes").open("wb") as file:
        for begin in range(0, 4 << 20, 1 << 20):
            file.seek(begin + 100)
            file.write(b"between holes" * 400)
        file.truncate(5 << 20)
    run(tmp_path, "tar", "--sparse", *shlex.split(f"--format={form}"), "-cf", "layer.tar", "holes")
    assert (tmp_path / "layer.tar").stat().st_size < 1 << 20, "the holes are not in it"
    (tmp_path / "tree").mkdir()
    oci.extract(str(layout(tmp_path, (tmp_path / "layer.tar").read_bytes())), str(tmp_path / "tree"), machine="x86_64")
    assert (tmp_path / "tree/holes").read_bytes() == (tmp_path / "holes").read_bytes()


BUILDAH = """
set -e
run() { buildah --root "$PWD/root" --runroot "$PWD/run" --storage-driver vfs "$@"; }
below=$(run from scratch)
tree=$(run mount "$below")
mkdir -p "$tree/usr/bin" "$tree/etc"
echo program > "$tree/usr/bin/su"; chmod 4755 "$tree/usr/bin/su"; ln -s su "$tree/usr/bin/link"
echo gone > "$tree/etc/gone"; mkfifo "$tree/pipe"; truncate -s 20M "$tree/sparse"
mkdir "$tree/etc/folder"; echo x > "$tree/etc/folder/x"
touch -d '2001-02-03 04:05:06 UTC' "$tree/usr/bin/su"
run config --env A=1 "$below"; run commit -q "$below" below
above=$(run from --pull-never below)
tree=$(run mount "$above")
rm "$tree/etc/gone"; rm -r "$tree/etc/folder"; echo file > "$tree/etc/folder"
cp -a "$tree" expected
run commit -q "$above" above
echo '{"default": [{"type": "insecureAcceptAnything"}]}' > policy.json
run push -q --signature-policy policy.json above "oci:$PWD/gzip:t"
run push -q --signature-policy policy.json --compression-format zstd above "oci:$PWD/zstd:t"
"""


def test_what_buildah_built_in_two_layers_is_the_tree_it_was_built_of(tmp_path: Path) -> None:
    needs("buildah")
    if os.geteuid() != 0:
        pytest.skip("only root may mount what buildah builds without a user namespace")
    run(tmp_path, "sh", "-c", BUILDAH)
    expected = entries_of(tmp_path / "expected")
    for name in ("gzip", "zstd"):
        found = entries_of(built(tmp_path / name, build.BuildOptions(machine=os.uname().machine)))
        del found[".robust-image.json"], found["."]
        assert found == {path: entry for path, entry in expected.items() if path != "."}


def test_a_sif_that_apptainer_built_of_a_layout_is_an_image(tmp_path: Path) -> None:
    needs("apptainer")
    source = two_layers(tmp_path)
    run(tmp_path, "apptainer", "build", "a.sif", f"oci:{source}:{TAG}")
    found = build.describe(str(tmp_path / "a.sif"))
    assert found.offset_bytes
    assert found.machine == os.uname().machine
