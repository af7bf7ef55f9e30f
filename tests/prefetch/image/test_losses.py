"""What an image keeps of modes, types, owners and times, and that it says what it does not keep."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch.commands import image as image_group
from robust_run.prefetch.errors import BuildFailed, ImageRefused
from robust_run.prefetch.image import build, survey
from robust_run.prefetch.image.losses import Loss, Losses, Original, printable, sentence
from tests.prefetch.image.tools import Layer, layout, needs, python_path


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("mksquashfs", "unsquashfs")


OPTIONS = build.BuildOptions(machine="x86_64")


def listed(image: Path) -> dict[str, tuple[str, str]]:
    """Return path → (type and permissions, owner) of what an image has."""
    said = subprocess.run(["unsquashfs", "-lln", image], check=True, capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=5) for line in said.splitlines() if " squashfs-root" in line]
    return {row[-1].removeprefix("squashfs-root").removeprefix("/"): (row[0], row[1]) for row in rows}


def built(source: Path, image: Path, options: build.BuildOptions = OPTIONS) -> dict[str, Loss]:
    lost: list[Loss] = []
    build.build(str(source), str(image), options, lost=lost.extend)
    return {loss.kind: loss for loss in lost}


def test_all_modes_of_layers_are_kept(tmp_path: Path) -> None:
    layer = Layer().folder("closed", 0o555).file("closed/f", b"secret", 0o000).file("w", b"x", 0o200)
    layer.file("su", b"x", 0o4755).file("only", b"x", 0o4111).file("sg", b"x", 0o2755)
    layer.folder("tmp", 0o1777).folder("shared", 0o2775).folder(".", 0o555).hard_link("again", "su")
    layer.file('a "b" \\c#', b"x", 0o4711)
    assert built(layout(tmp_path, layer), tmp_path / "i.sqsh") == {}
    found = {path: mode for path, (mode, _owner) in listed(tmp_path / "i.sqsh").items()}
    expected = {
        "": "dr-xr-xr-x", "closed": "dr-xr-xr-x", "closed/f": "----------", "w": "--w-------", "su": "-rwsr-xr-x",
        "only": "---s--x--x", "sg": "-rwxr-sr-x", "tmp": "drwxrwxrwt", "shared": "drwxrwsr-x", "again": "-rwsr-xr-x",
        'a "b" \\c#': "-rws--x--x",
    }  # fmt: skip
    assert {path: found[path] for path in expected} == expected
    out = tmp_path / "out"
    subprocess.run(["unsquashfs", "-d", out, tmp_path / "i.sqsh", "closed/f"], check=True, stdout=subprocess.DEVNULL)
    if os.geteuid() == 0:
        assert (out / "closed/f").read_bytes() == b"secret"


def test_pipes_of_layers_are_kept(tmp_path: Path) -> None:
    layer = Layer().entry("run/pipe", type=tarfile.FIFOTYPE, mode=0o620, mtime=1e9).hard_link("run/again", "run/pipe")
    assert built(layout(tmp_path, layer), tmp_path / "i.sqsh") == {}
    found = listed(tmp_path / "i.sqsh")
    assert found["run/pipe"] == found["run/again"] == ("prw--w----", "0/0")


def test_what_is_not_kept_of_layers_is_counted_and_named(tmp_path: Path) -> None:
    layer = Layer().entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    layer.entry("dev/sda", type=tarfile.BLKTYPE, devmajor=8, devminor=0)
    layer.entry("home/me", type=tarfile.DIRTYPE, mode=0o755, uid=1000, gid=100)
    layer.entry("usr/bin/chage", b"x", size=1, mode=0o2755, gid=42).entry(
        "usr/bin/me", b"x", size=1, mode=0o6711, uid=7
    )
    layer.entry("old", b"x", size=1, mtime=-86400).entry("late", b"x", size=1, mtime=1 << 33)
    capability = {"SCHILY.xattr.security.capability": "cap", "SCHILY.xattr.security.selinux": "label"}
    layer.entry("usr/bin/ping", b"x", size=1, pax_headers=capability)
    layer.entry("labelled", b"x", size=1, pax_headers={"SCHILY.xattr.security.selinux": "label"})
    found = built(layout(tmp_path, layer), tmp_path / "i.sqsh")
    assert {kind: (loss.count, loss.examples) for kind, loss in found.items()} == {
        "owners": (3, ("home/me: 1000:100", "usr/bin/chage: 0:42", "usr/bin/me: 7:0")),
        "setuid": (2, ("usr/bin/chage: 2755", "usr/bin/me: 6711")),
        "times": (2, ("late", "old")),
        "attributes": (1, ("usr/bin/ping: security.capability",)),
        "devices": (2, ("dev/null", "dev/sda")),
    }
    image = listed(tmp_path / "i.sqsh")
    assert image["usr/bin/chage"] == ("-rwxr-xr-x", "0/0")
    assert image["usr/bin/me"] == ("-rwx--s--x", "0/0"), "its group is root's"
    assert "dev/null" not in image
    assert "dev" in image


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"LIBARCHIVE.xattr.user.note": "eA==", "SCHILY.xattr.user.note": "x"}, ("a: user.note",)),
        ({"SCHILY.acl.access": "user::rw-", "SCHILY.acl.default": "user::rw-"}, ("a: acl.access acl.default",)),
        ({"LIBARCHIVE.creationtime": "1", "SCHILY.dev": "1", "SCHILY.fflags": "nodump"}, None),
    ],
)
def test_attributes_are_named_whatever_wrote_the_tar(
    tmp_path: Path, headers: dict[str, str], named: tuple[str, ...] | None
) -> None:
    found = built(layout(tmp_path, Layer().entry("a", b"x", size=1, pax_headers=headers)), tmp_path / "i.sqsh")
    assert (found["attributes"].examples if found else None) == named


def test_what_a_later_layer_removed_is_not_named(tmp_path: Path) -> None:
    below = Layer().entry("a/x", b"x", size=1, uid=7).entry("b", b"x", size=1, uid=7).entry("c", b"x", size=1, uid=7)
    above = Layer().file(".wh.a").file("b", b"root's now").link("d", "c").entry("e", type=tarfile.CHRTYPE).file(".wh.c")
    found = built(layout(tmp_path, below, above, Layer().file(".wh.e")), tmp_path / "i.sqsh")
    assert found == {}


def test_a_folder_keeps_what_mksquashfs_keeps_and_names_the_rest(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(source)
        listening.bind("socket")
        os.chdir(here)
    for name in ("old", "plain", "mine"):
        (source / name).write_text(name)
    os.utime(source / "old", (-86400, -86400))
    (source / "mine").chmod(0o4755)
    found = built(source, tmp_path / "i.sqsh")
    assert found["times"].examples == ("old",)
    image = listed(tmp_path / "i.sqsh")
    assert image["pipe"][0][0] == "p"
    assert image["socket"][0][0] == "s"
    if os.geteuid() == 0:
        assert set(found) == {"times"}
        assert image["mine"][0] == "-rwsr-xr-x"
    else:
        assert set(found) == {"times", "setuid"}


def test_owners_of_a_folder_are_named_where_they_say_something(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("mine", "other", "root", "left-out", "su\nid"):
        (source / name).write_text(name)
    for name in (".", "mine"):
        os.chown(source / name, 1000, 1000)
    os.chown(source / "other", 1001, 1000)
    os.chown(source / "left-out", 1001, 1000)
    (source / "left-out").chmod(0o4755)
    found = built(source, tmp_path / "i.sqsh", build.BuildOptions(exclude=("left-out",)))
    assert {kind: loss.examples for kind, loss in found.items()} == {"owners": ("other: 1001:1000",)}
    os.chown(source / "su\nid", 1001, 1000)
    (source / "su\nid").chmod(0o4755)
    with pytest.raises(ImageRefused, match=r"su\\x0aid.*rename it"):
        built(source, tmp_path / "i.sqsh")


def test_extended_attributes_of_a_folder_are_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a")
    try:
        os.setxattr(source / "a", "user.note", b"x")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error.strerror}")
    assert built(source, tmp_path / "i.sqsh")["attributes"].examples == ("a: user.note",)


AS_NOBODY = """
import concurrent.futures.thread, encodings.ascii, encodings.idna, os, sys
from robust_run.prefetch.image import build
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # after all imports: Python itself may lie where nobody looks
lost = []
try:
    build.build(sys.argv[1], sys.argv[2], build.BuildOptions(machine="x86_64"), lost=lost.extend)
    print([(each.kind, each.count) for each in lost])
except Exception as error:
    print(type(error).__name__, error)
"""


def as_nobody(source: Path, image: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    for folder in (image.parent, *image.parent.parents):
        if not folder.stat().st_mode & 0o001 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    os.chown(image.parent, 65534, 65534)
    if not any(entry.pw_uid == 65534 for entry in pwd.getpwall()):
        pytest.skip("there is no user nobody")
    argv = [sys.executable, "-c", AS_NOBODY, str(source), str(image)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def test_what_cannot_be_read_is_refused_and_never_an_empty_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc/shadow").write_text("secret")
    (source / "etc/shadow").chmod(0)
    (source / "private").mkdir(mode=0o700)
    (source / "private/x").write_text("x")
    (tmp_path / "out").mkdir()
    said = as_nobody(source, tmp_path / "out" / "i.sqsh")
    assert said.startswith("ImageRefused")
    assert "2 of its entries cannot be read by us: etc/shadow, private" in said
    assert "--exclude" in said
    assert not (tmp_path / "out/i.sqsh").exists()


def test_whoever_builds_layers_gets_the_same_image(tmp_path: Path) -> None:
    layer = Layer().folder("closed", 0o000).file("closed/f", b"secret", 0o000).file("su", b"x", 0o6755)
    layer.entry("pipe", type=tarfile.FIFOTYPE).entry("new\nline", b"x", size=1, mode=0o4711, uid=3)
    place = layout(tmp_path, layer)
    (tmp_path / "out").mkdir()
    build.build(str(place), str(tmp_path / "ours.sqsh"), OPTIONS)
    assert as_nobody(place, tmp_path / "out" / "i.sqsh") == "[('owners', 1), ('setuid', 1)]"
    assert (tmp_path / "out/i.sqsh").read_bytes() == (tmp_path / "ours.sqsh").read_bytes()


def test_a_file_that_mksquashfs_could_not_read_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mksquashfs"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ntouch "$2"; echo "Failed to read file x/y, creating empty file" >&2\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    (tmp_path / "source").mkdir()
    with pytest.raises(BuildFailed, match="could not read 1 file"):
        build.build(str(tmp_path / "source"), str(tmp_path / "i.sqsh"))


def test_the_command_says_what_is_not_kept_and_inspect_says_it_again(tmp_path: Path) -> None:
    layer = Layer().entry("dev/\033[31mred", type=tarfile.CHRTYPE).entry("a\udcff", b"x", size=1, uid=7)
    place, made = str(layout(tmp_path, layer)), str(tmp_path / "i.sqsh")
    cache = ["--image-cache", str(tmp_path / "cache")]
    (tmp_path / "cache").mkdir(mode=0o700)
    run = CliRunner()
    done = run.invoke(image_group, ["build", place, made, *cache], catch_exceptions=False, standalone_mode=False)
    line = "not kept: the owner of 1 entry becomes 0:0 (a\\xff: 7:0); 1 device node is left out (dev/\\x1b[31mred)"
    assert f"robust: {made}: {line}" in done.output
    shown = run.invoke(image_group, ["inspect", made, *cache], catch_exceptions=False, standalone_mode=False).output
    assert "not kept when it was built: 1 device node is left out" in shown
    as_json = json.loads(
        run.invoke(
            image_group, ["inspect", made, "--json", *cache], catch_exceptions=False, standalone_mode=False
        ).output
    )
    assert [(each["kind"], each["count"]) for each in as_json["lost"]] == [("owners", 1), ("devices", 1)]
    again = run.invoke(
        image_group, ["build", place, made, "--json", *cache], catch_exceptions=False, standalone_mode=False
    )
    assert [each["kind"] for each in json.loads(again.output)["lost"]] == ["owners", "devices"]
    (tmp_path / "source").mkdir()
    run.invoke(
        image_group, ["build", str(tmp_path / "source"), made, *cache], catch_exceptions=False, standalone_mode=False
    )
    assert not (tmp_path / "i.sqsh.origins.json").exists()


# pure


ORIGINALS = st.builds(
    Original, st.integers(0, 0o7777), st.integers(-(1 << 34), 1 << 34), st.integers(0, 3), st.integers(0, 3),
    st.sampled_from([(), ("user.x",), ("security.selinux",)]), st.booleans(),
)  # fmt: skip


@given(ORIGINALS.map(lambda each: each._replace(is_device=False)))
def test_a_mode_changes_only_by_bits_that_need_the_owner(original: Original) -> None:
    kept = original.kept_mode()
    assert kept & 0o1777 == original.mode & 0o1777
    assert kept & ~original.mode == 0
    if original.is_folder or (not original.uid and not original.gid):
        assert kept == original.mode
    losses = Losses()
    losses.note("x", original)
    kinds = {loss.kind for loss in losses.found()}
    assert ("setuid" in kinds) == (kept != original.mode)
    assert ("owners" in kinds) == bool(original.uid or original.gid)
    assert not stat.S_ISUID & kept or original.is_folder or not original.uid


def test_one_line_says_all_of_it() -> None:
    losses = Losses()
    for number in range(12):
        losses.add("owners", f"f{number}", "7:7")
    losses.add("devices", "dev/null")
    [owners, devices] = losses.found()
    assert (owners.count, len(owners.examples)) == (12, 10)
    assert sentence([owners, devices]) == (
        "the owners of 12 entries become 0:0 (f0: 7:7, f1: 7:7, ...); 1 device node is left out (dev/null)"
    )


@given(st.text())
def test_whatever_a_file_is_called_it_is_printable(name: str) -> None:
    assert printable(name).isprintable()
    assert len(printable(name)) <= 80


@given(st.dictionaries(st.text(min_size=1).filter(survey.can_be_written), st.integers(0, 0o7777), max_size=5))
def test_a_pseudo_file_has_a_line_for_each(modes: dict[str, int]) -> None:
    lines = b"".join(survey.pseudo_lines({path: mode for path, mode in modes.items() if path.isascii()}))
    assert lines.count(b"\n") == sum(path.isascii() for path in modes)
