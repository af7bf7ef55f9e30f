"""Layers of an OCI image become one tree; a hostile layer gets nowhere."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image import oci
from robust_run.prefetch.image.description import DESCRIPTION
from robust_run.prefetch.image.layers import Extraction
from robust_run.prefetch.image.names import LayerLimits
from robust_run.prefetch.image.unpacking import unpacked
from tests.prefetch.image.tools import PACK, Layer, layout, names_below


def extract(tmp_path: Path, *layers: bytes | Layer, packing: str = "", limits: LayerLimits | None = None) -> Path:
    tree = tmp_path / "deep/down/tree"
    tree.mkdir(parents=True)
    oci.extract(str(layout(tmp_path, *layers, packing=packing)), str(tree), machine="x86_64", limits=limits)
    (tree / DESCRIPTION).unlink()
    return tree


@pytest.mark.parametrize("packing", list(PACK))
def test_layers_lie_above_one_another(tmp_path: Path, packing: str) -> None:
    below = Layer().folder("etc").file("etc/a", b"old").file("etc/b", b"kept").link("lib", "usr/lib").folder("usr/lib")
    above = Layer().file("etc/a", b"new").file("lib/c.so", b"through a link")
    tree = extract(tmp_path, below, above, packing=packing)
    assert (tree / "etc/a").read_bytes() == b"new"
    assert (tree / "etc/b").read_bytes() == b"kept"
    assert (tree / "usr/lib/c.so").read_bytes() == b"through a link"
    assert (tree / "lib").is_symlink()


def test_a_layer_in_pieces_with_notes_between_them_is_one() -> None:
    """As podman writes `zstd:chunked`: several frames, and frames that are to be skipped."""
    import struct

    note, engine = struct.pack("<II", 0x184D2A50, 100) + bytes(100), zstandard.ZstdCompressor()
    data = Layer().file("a", b"x" * 70_000).file("b", b"y").bytes()
    blob = note + engine.compress(data[:50_000]) + note + engine.compress(data[50_000:]) + note + note
    assert b"".join(unpacked(io.BytesIO(blob), "zstd", len(blob)).pieces) == data


def test_a_whiteout_removes_what_is_below_and_nothing_of_its_own_layer(tmp_path: Path) -> None:
    below = Layer().file("a/old", b"1").file("a/deep/old", b"1").file("b", b"1").file("c/x", b"1")
    above = Layer().file("a/new", b"2").file("a/.wh..wh..opq").file(".wh.b").file(".wh.c").file("c/y", b"2")
    tree = extract(tmp_path, below, above)
    assert names_below(tree) == {"a", "a/new", "c", "c/y"}


def test_a_folder_replaces_a_file_and_a_file_a_folder(tmp_path: Path) -> None:
    tree = extract(tmp_path, Layer().file("a").file("b/c"), Layer().folder("a").file("a/x", b"x").file("b", b"file"))
    assert (tree / "a/x").read_bytes() == b"x"
    assert (tree / "b").read_bytes() == b"file"


def test_what_the_image_wants_its_programs_to_have_is_kept_in_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    place = layout(tmp_path, Layer().file("a"), Env=["PATH=/opt/conda/bin", "X=1"], WorkingDir="/w")
    oci.extract(str(place), str(tree), machine="x86_64")
    described = json.loads((tree / DESCRIPTION).read_text())
    assert described["env"] == ["PATH=/opt/conda/bin", "X=1"]
    assert described["working_dir"] == "/w"


@pytest.mark.parametrize(
    "name", ["../escaped", "a/../../escaped", "./../escaped", "/../escaped", "a/..", "..", ".wh...", ".wh."]
)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageRefused, match="wants out"):
        extract(tmp_path, Layer().folder("a").file(name, b"x"))
    assert not list(tmp_path.rglob("escaped"))


def test_what_aufs_keeps_for_itself_is_no_part_of_the_image(tmp_path: Path) -> None:
    layer = Layer().folder("a").file("a/x", b"x").file(".wh..wh.aufs", b"").folder(".wh..wh.plnk")
    tree = extract(
        tmp_path, layer.file(".wh..wh.plnk/12.34", b"x"), Layer().file("a/.wh..wh..opq", b"").file("a/y", b"y")
    )
    assert sorted(path.name for path in tree.rglob("*") if path.name != DESCRIPTION) == ["a", "y"]


def test_an_absolute_name_lies_in_the_image(tmp_path: Path) -> None:
    tree = extract(tmp_path, Layer().file("/etc/absolute", b"x"))
    assert (tree / "etc/absolute").read_bytes() == b"x"


@pytest.mark.parametrize("target", ["/", "../../../../../../../../../..", "{outside}", "../../.."])
def test_a_link_that_leads_out_leads_nowhere_but_into_the_image(tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    linked = target.format(outside=outside)
    tree = extract(
        tmp_path,
        Layer().link("way", linked).file("way/new", b"x").file("way/file", b"overwritten"),
        Layer().file("way/.wh.file").file("way/.wh..wh..opq"),
    )
    assert (outside / "file").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "deep", "layout"}
    assert not any(
        path.is_file() and path.read_bytes() == b"x" for path in tree.rglob("*")
    )  # the second layer removed it


def test_a_file_is_never_written_through_a_link_of_its_own_name(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    tree = extract(tmp_path, Layer().link("a", str(victim)), Layer().file("a", b"x"))
    assert victim.read_text() == "precious"
    assert (tree / "a").read_bytes() == b"x"
    assert not (tree / "a").is_symlink()


@pytest.mark.parametrize("target", ["../../../victim", "/etc/passwd-that-is-not-there", "way/victim", "."])
def test_a_hard_link_to_what_is_no_file_of_the_image_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "victim").write_text("precious")
    with pytest.raises(ImageRefused, match="no file of the image"):
        extract(tmp_path, Layer().link("way", str(tmp_path)).hard_link("a", target))
    assert (tmp_path / "victim").stat().st_nlink == 1


def test_a_hard_link_within_the_image_is_one(tmp_path: Path) -> None:
    tree = extract(tmp_path, Layer().file("a", b"x").hard_link("b", "a").hard_link("c", "/a"))
    assert (tree / "a").stat().st_nlink == 3


def test_more_bytes_or_entries_than_the_limits_are_refused(tmp_path: Path) -> None:
    for number, (limits, layer) in enumerate(
        [
            (LayerLimits(bytes=1000), Layer().file("a", b"x" * 600).file("b", b"x" * 600)),
            (LayerLimits(entries=3), Layer().file("a").file("b").file("c").file("d")),
            (None, Layer().file("d/" * 1500 + "f")),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ImageRefused, match=r"more than|at most"):
            extract(tmp_path / str(number), layer, limits=limits)


def test_a_header_that_claims_gigabytes_is_refused_before_they_are_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    with pytest.raises(ImageRefused, match="header of 8589934592 bytes"):
        extract(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)


def test_a_file_that_claims_more_than_the_layer_has_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("large")
    info.size = 1 << 39
    with pytest.raises(ImageRefused):
        extract(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    layer = Layer().file("zeros", bytes(64 << 20))
    with pytest.raises(ImageRefused, match="at most"):
        extract(tmp_path, layer, packing="+zstd", limits=LayerLimits(bytes=1 << 20))
    assert sum(path.stat().st_size for path in (tmp_path / "deep").rglob("*") if path.is_file()) <= 1 << 20


@pytest.mark.parametrize("damage", ["cut", "changed", "longer", "missing"])
def test_a_blob_that_is_not_what_it_should_be_is_refused(tmp_path: Path, damage: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    place = layout(tmp_path, Layer().file("a", b"a" * 100_000))
    blob = max((place / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = blob.read_bytes()
    changed = {"cut": data[:-512], "changed": data[:5000] + b"!" + data[5001:], "longer": data + bytes(512)}
    blob.unlink() if damage == "missing" else blob.write_bytes(changed[damage])
    with pytest.raises(ImageRefused, match=r"damaged|missing|longer|cut short"):
        oci.extract(str(place), str(tree), machine="x86_64")


@pytest.mark.parametrize(
    "digest", ["sha256:../../../../etc/passwd", "sha256:" + "a" * 63, "md5:" + "a" * 64, "", "sha256:" + "A" * 64]
)
def test_a_digest_that_is_none_names_no_file(tmp_path: Path, digest: str) -> None:
    place = layout(tmp_path, Layer().file("a"))
    (place / "index.json").write_text(json.dumps({"manifests": [{"digest": digest, "size": 1}]}))
    with pytest.raises(ImageRefused, match="cannot be"):
        oci.extract(str(place), str(tmp_path), machine="x86_64")


def test_the_manifest_of_this_machine_is_taken(tmp_path: Path) -> None:
    place = layout(tmp_path, Layer().file("a"))
    index = json.loads((place / "index.json").read_text())
    entry = index["manifests"][0]
    other = {**entry, "digest": "sha256:" + "0" * 64, "platform": {"architecture": "arm64", "os": "linux"}}
    index["manifests"] = [other, {**entry, "platform": {"architecture": "amd64", "os": "linux"}}]
    (place / "index.json").write_text(json.dumps(index))
    tree = tmp_path / "tree"
    tree.mkdir()
    oci.extract(str(place), str(tree), machine="x86_64")
    assert (tree / "a").exists()
    with pytest.raises(ImageRefused, match="0 of its 2 images fit"):
        oci.extract(str(place), str(tree), machine="riscv64")


@given(st.binary(max_size=3000))
def test_whatever_bytes_a_layer_has_only_our_error_comes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    import hashlib

    folder = tmp_path_factory.mktemp("any")
    head = tarfile.TarInfo("x").tobuf()
    for packing in ("none", "gzip", "zstd"):
        whole = (head + data) if packing == "none" else data
        try:
            Extraction(str(folder), LayerLimits()).apply(
                io.BytesIO(whole), packing, hashlib.sha256(whole).hexdigest(), len(whole)
            )
        except ImageRefused:
            continue
