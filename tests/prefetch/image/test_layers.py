"""Layers as the OCI image specification has them: whatever replaces what, and wherever in its layer a whiteout stands."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image import oci
from robust_run.prefetch.image.description import DESCRIPTION
from robust_run.prefetch.image.names import LayerLimits
from tests.prefetch.image.layer_model import Model, Op, RefusedError, same_in, shown_in
from tests.prefetch.image.tools import Layer, layout, names_below, needs


def extract(folder: Path, *layers: Layer) -> Path:
    tree = folder / "tree"
    tree.mkdir()
    oci.extract(str(layout(folder, *layers)), str(tree), machine="x86_64")
    (tree / DESCRIPTION).unlink()
    return tree


BELOW = ("a/x", "a/y/z", "b/x")


def below() -> Layer:
    layer = Layer()
    for name in BELOW:
        layer.file(name, b"below")
    return layer


def test_a_layer_without_entries_changes_nothing(tmp_path: Path) -> None:
    assert names_below(extract(tmp_path, Layer(), below(), Layer())) == {"a", "a/x", "a/y", "a/y/z", "b", "b/x"}


@pytest.mark.parametrize("whiteouts", [["a/.wh.x"], ["a/.wh.x", "a/.wh.y"], ["a/.wh..wh..opq"], ["a/y/.wh.z"]])
@pytest.mark.parametrize("comes", ["first", "last"])
def test_a_file_that_replaces_a_folder_stays_whatever_is_hidden_below_it(
    tmp_path: Path, whiteouts: list[str], comes: str
) -> None:
    layer = Layer()
    names = [*whiteouts, "a"] if comes == "last" else ["a", *whiteouts]
    for name in names:
        layer.file(name, b"" if name in whiteouts else b"a file now")
    tree = extract(tmp_path, below(), layer)
    assert (tree / "a").read_bytes() == b"a file now"
    assert names_below(tree) == {"a", "b", "b/x"}


@pytest.mark.parametrize("comes", ["first", "last"])
def test_a_link_that_replaces_a_folder_leads_no_whiteout_elsewhere(tmp_path: Path, comes: str) -> None:
    layer = Layer()
    for name in ["a/.wh.x", ""] if comes == "last" else ["", "a/.wh.x"]:
        layer.file(name) if name else layer.link("a", "b")
    tree = extract(tmp_path, below(), layer)
    assert os.readlink(tree / "a") == "b"
    assert (tree / "b/x").read_bytes() == b"below"


def test_a_whiteout_goes_through_a_link_of_the_layers_below(tmp_path: Path) -> None:
    tree = extract(tmp_path, below().link("c", "/a"), Layer().file("c/.wh.x").file("c/new"))
    assert names_below(tree) == {"a", "a/new", "a/y", "a/y/z", "b", "b/x", "c"}


@pytest.mark.parametrize("comes", ["first", "last"])
@pytest.mark.parametrize("explicit", [True, False])
def test_a_folder_that_is_hidden_and_made_anew_has_nothing_of_the_old_one(
    tmp_path: Path, comes: str, explicit: bool
) -> None:
    layer = Layer()
    if comes == "first":
        layer.file(".wh.a")
    if explicit:
        layer.folder("a")
    layer.file("a/new", b"new")
    if comes == "last":
        layer.file(".wh.a")
    assert names_below(extract(tmp_path, below(), layer)) == {"a", "a/new", "b", "b/x"}


def test_what_hides_nothing_makes_nothing(tmp_path: Path) -> None:
    layer = Layer().file("no/such/.wh.x").file("no/.wh..wh..opq").file("a/x/.wh.y").file("a/x/.wh..wh..opq")
    tree = extract(tmp_path, below(), layer)
    assert names_below(tree) == names_below(extract_again(tmp_path, below()))
    assert (tree / "a/x").read_bytes() == b"below"


def extract_again(folder: Path, *layers: Layer) -> Path:
    (folder / "again").mkdir()
    return extract(folder / "again", *layers)


def test_whiteouts_of_a_first_layer_hide_nothing_of_it(tmp_path: Path) -> None:
    tree = extract(tmp_path, Layer().file("a").file(".wh.a").file("b/x").file("b/.wh..wh..opq"))
    assert names_below(tree) == {"a", "b", "b/x"}


def test_a_hard_link_keeps_what_another_layer_replaces(tmp_path: Path) -> None:
    tree = extract(
        tmp_path, Layer().file("a", b"old").hard_link("b", "a"), Layer().file("a", b"new").hard_link("c", "b")
    )
    assert (tree / "a").read_bytes() == b"new"
    assert (tree / "b").read_bytes() == b"old"
    assert (tree / "b").stat().st_ino == (tree / "c").stat().st_ino != (tree / "a").stat().st_ino


def test_a_hard_link_to_what_its_layer_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageRefused, match="no file of the image"):
        extract(tmp_path, Layer().file("a"), Layer().hard_link("b", "a").file(".wh.a"))


def test_a_folder_that_became_a_link_out_of_the_image_keeps_its_mode_to_itself(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "secret").mkdir(parents=True)
    (outside / "secret").chmod(0o700)
    before = (outside / "secret").stat()
    tree = extract(tmp_path, Layer().folder("way/secret", 0o777), Layer().link("way", str(outside)))
    after = (outside / "secret").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert os.readlink(tree / "way") == str(outside)


def test_a_device_replaces_what_was_there_and_is_replaced(tmp_path: Path) -> None:
    tree = extract(
        tmp_path,
        Layer().file("a").file("b"),
        made(Op("device", "a"), Op("device", "c"), Op("device", "d"), Op("hard", "e", "d")),
        Layer().file("c", b"a file").file(".wh.d"),
    )
    assert names_below(tree) == {"b", "c"}


def test_more_whiteouts_than_the_limit_are_refused(tmp_path: Path) -> None:
    layer = made(*(Op("whiteout", str(number)) for number in range(20)))
    (tmp_path / "tree").mkdir()
    place = str(layout(tmp_path, Layer().file("a"), layer))
    with pytest.raises(ImageRefused, match="more than 10 whiteouts"):
        oci.extract(place, str(tmp_path / "tree"), machine="x86_64", limits=LayerLimits(whiteouts=10))


def made(*ops: Op) -> Layer:
    layer = Layer()
    for op in ops:
        op.into(layer)
    return layer


NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.one_of(PATHS, PATHS.map("/{}".format), PATHS.map("../{}".format), st.sampled_from(["..", ".", "/", "no"]))
OPS = st.one_of(
    st.builds(Op, st.sampled_from(["folder", "fifo", "device", "whiteout", "opaque"]), PATHS),
    st.builds(Op, st.just("file"), PATHS, st.text("xyz", max_size=2)),
    st.builds(Op, st.just("link"), PATHS, TARGETS),
    st.builds(Op, st.just("hard"), PATHS, PATHS),
    st.just(Op("opaque", "")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(OPS, max_size=7), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_any_layers_come_to_what_the_specification_says(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[Op]], chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    model, expected = Model(), None
    with contextlib.suppress(RefusedError):
        for ops in layers:
            model.apply(ops)
        expected = model.shown()
    # Where in its layer a whiteout stands makes no difference.
    moved = [[op for op in ops if op.kind not in ("whiteout", "opaque")] for ops in layers]
    for ops, new in zip(layers, moved, strict=True):
        for op in ops:
            if op.kind in ("whiteout", "opaque"):
                new.insert(chance.randint(0, len(new)), op)
    try:
        for number, each in enumerate((layers, moved)):
            (folder / str(number)).mkdir()
            try:
                tree = extract(folder / str(number), *(made(*ops) for ops in each))
            except ImageRefused:
                assert expected is None
                continue
            assert shown_in(tree) == expected
            assert same_in(tree) == model.same()
    finally:
        shutil.rmtree(folder)


def change(tree: Path, chance: random.Random) -> None:
    """Make a tree another one: what it has is removed, replaced by other kinds, and added to."""
    names = ["a", "b", "c", "d"]
    for _ in range(chance.randint(2, 8)):
        path = tree.joinpath(*chance.choices(names, k=chance.randint(1, 3)))
        above = tree
        for part in path.relative_to(tree).parts[:-1]:
            above = above / part
            if above.is_symlink() or not above.is_dir():
                above.unlink(missing_ok=True)
                above.mkdir()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        kind = chance.choice(["file", "file", "folder", "link", "nothing"])
        if kind == "file":
            path.write_text(str(chance.random()))
        elif kind == "folder":
            path.mkdir()
            (path / chance.choice(names)).write_text(str(chance.random()))
        elif kind == "link":
            path.symlink_to(chance.choice([*names, "../a", "/b/c"]))


@pytest.mark.parametrize("seed", range(6))
def test_what_umoci_writes_comes_to_the_tree_it_was_written_of(tmp_path: Path, seed: int) -> None:
    needs("umoci")
    chance = random.Random(seed)
    place, bundle = tmp_path / "layout", tmp_path / "bundle"
    rootless = [] if os.geteuid() == 0 else ["--rootless"]

    def umoci(*words: str) -> None:
        subprocess.run(["umoci", *words], check=True, capture_output=True, timeout=120)

    umoci("init", "--layout", str(place))
    umoci("new", "--image", f"{place}:t")
    for _layer in range(4):
        umoci("unpack", *rootless, "--image", f"{place}:t", str(bundle))
        change(bundle / "rootfs", chance)
        expected = shown_in(bundle / "rootfs")
        umoci("repack", "--image", f"{place}:t", str(bundle))
        shutil.rmtree(bundle)
    (tmp_path / "tree").mkdir()
    oci.extract(str(place), str(tmp_path / "tree"), machine=os.uname().machine)
    (tmp_path / "tree" / DESCRIPTION).unlink()
    assert shown_in(tmp_path / "tree") == expected
