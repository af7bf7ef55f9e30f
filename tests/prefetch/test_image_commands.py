"""`robust image`: what is typed, what is printed, which exit code."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from servers.model_origin import ModelOrigin

from robust_run.errors import UserError
from robust_run.prefetch import blockmap
from robust_run.prefetch.commands import image as group
from robust_run.prefetch.commands_running import mount, program_of
from robust_run.prefetch.errors import BlockMapRefused
from robust_run.prefetch.launch import own_folder
from robust_run.snapshot.restore import unpacked

MIB = 1 << 20
LIMIT_S = 120
Run = Callable[..., Result]


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Run:
    """Runs a command; with an exception that is no exit, raises it."""

    def run(*words: str) -> Result:
        env = {"ROBUST_IMAGE_CACHE": str(tmp_path / "cache")}
        result = CliRunner().invoke(group, list(words), env=env, standalone_mode=False, catch_exceptions=False)
        assert result.exit_code == 0
        return result

    return run


@pytest.fixture(name="built")
def _built(tmp_path: Path, run: Run) -> Path:
    """An image of a folder with 12 MB that do not compress."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed")
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(12):
        (tree / f"file-{number}").write_bytes(random.Random(number).randbytes(MIB))
    (tmp_path / "origin").mkdir()
    made = tmp_path / "origin" / "env.sqsh"
    run("build", str(tree), str(made), "--mount-at", "/opt/env/")
    return made


@pytest.fixture(name="origin")
def _origin(built: Path) -> Iterator[ModelOrigin]:
    with ModelOrigin(built.parent, latency_s=0.002) as origin:
        yield origin


def test_an_image_is_built_and_looked_into(run: Run, built: Path) -> None:
    found = json.loads(run("inspect", str(built), "--json").output)
    assert (found["kind"], found["compression"], found["mount_at"]) == ("squashfs", "zstd", "/opt/env")
    assert 12 * 8 <= found["blocks"] <= 13 * 8, "of 128 KiB: it is small"
    assert found["cached_blocks"] == 0
    assert "hot list" in run("inspect", str(built)).output


@pytest.mark.parametrize("folder", ["env", "/", "/a/../b", ""])
def test_a_folder_that_an_image_cannot_belong_at_is_refused_before_it_is_packed(
    run: Run, tmp_path: Path, folder: str
) -> None:
    with pytest.raises(UserError, match="--mount-at"):
        run("build", str(tmp_path), str(tmp_path / "x.sqsh"), "--mount-at", folder)


def test_the_block_map_of_an_image_is_made_again_with_what_the_old_one_said(run: Run, built: Path) -> None:
    before = Path(blockmap.sidecar(str(built))).read_bytes()
    run("build", str(built))
    assert Path(blockmap.sidecar(str(built))).read_bytes() == before
    with pytest.raises(UserError, match="an image already"):
        run("build", str(built), str(built.with_name("other.sqsh")))


def test_damage_is_found(run: Run, built: Path) -> None:
    assert run("verify", str(built)).return_value == 0
    with open(built, "r+b") as file:
        file.seek(5 * MIB)
        file.write(b"damage")
    result = run("verify", str(built), "--json")
    assert result.return_value == 1
    assert json.loads(result.output)["wrong"] == [5 * 8]


def test_all_of_an_image_is_brought_here_and_shown(run: Run, built: Path, origin: ModelOrigin) -> None:
    url = f"{origin.url}env.sqsh"
    with pytest.raises(UserError, match="--all"):
        run("prefetch", url)
    first, second = (json.loads(run("prefetch", url, "--all", "--json").output) for _ in range(2))
    size = built.stat().st_size
    assert (first["fetched_bytes"], first["kept_bytes"], first["missing"]) == (size, 0, 0)
    assert (second["fetched_bytes"], second["kept_bytes"]) == (0, size)
    assert run("verify", url, "--cached").return_value == 0
    assert len(json.loads(run("stats", "--json").output)["images"]) == 1
    assert "removed" in run("stats", "--prune", "0").output
    assert "no image" in run("stats").output


def test_blocks_that_cannot_be_had_are_said(run: Run, built: Path, origin: ModelOrigin) -> None:
    url = f"{origin.url}env.sqsh"
    assert run("inspect", url).return_value == 0  # its map is remembered
    origin.fault = "wrong"
    with pytest.raises(BlockMapRefused):
        run("prefetch", url, "--all", "--json")


def test_a_start_is_recorded_brought_here_and_used_to_build_a_better_image(
    tmp_path: Path, built: Path, origin: ModelOrigin
) -> None:
    code = "import sys; from robust_run.prefetch.commands import image; sys.exit(image(standalone_mode=False) or 0)"
    env = {**os.environ, "ROBUST_IMAGE_CACHE": str(tmp_path / "cache")}
    url = f"{origin.url}env.sqsh"

    def robust(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
        )

    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there for us")
    done = robust("record", "--json", url, "--", "md5sum", "/opt/env/file-7")
    if "image cannot be used on this machine" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.rindex('{"schema"') :])
    assert report["start"]["way"] == "first"
    assert os.path.exists(report["kept_at"])
    shutil.rmtree(next((tmp_path / "cache").glob("?" * 64)))
    brought = json.loads(robust("prefetch", "--json", url).stdout)
    assert MIB <= brought["fetched_bytes"] <= 5 * MIB
    done = robust("mount", url, "sh", "-c", "cat /opt/env/file-3 > /dev/null; exit 5")
    assert done.returncode == 5, done.stderr
    better = tmp_path / "better.sqsh"
    done = robust("build", str(tmp_path / "tree"), str(better), "--from-record", str(built))
    found = re.search(r"(\d+) recorded files first", done.stdout)
    assert found, done.stderr
    data = better.read_bytes()
    places = [data.index(random.Random(number).randbytes(4096)) for number in range(12)]
    assert places[7] in sorted(places)[: int(found[1])]
    assert int(found[1]) < 8


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Exception, match="only we can write"):
        own_folder(str(tmp_path / "open"))


@pytest.mark.skipif(os.geteuid() != 0, reason="root owns what it wants")
def test_a_cache_to_which_a_strangers_link_leads_is_refused(tmp_path: Path) -> None:
    """The folder is ours, and whoever made the link can lead it to another one once we have looked."""
    ours, everybodys = tmp_path / "ours", tmp_path / "tmp"
    ours.mkdir(mode=0o700)
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    link = everybodys / "robust-run-0"
    link.symlink_to(ours)
    assert own_folder(str(link)) == str(link), "a link of our own"
    os.lchown(link, 1666, 1666)
    for refusing, below in ((own_folder, ""), (own_folder, "cache"), (unpacked.own_folder, "snapshots")):
        with pytest.raises(Exception, match="a link of user 1666 in a folder that anybody can write to"):
            refusing(str(link / below))
    assert list(ours.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("IMG --image-cache /c ls -l", ("ls", "-l")),
        ("--image-cache /c IMG ls -l", ("ls", "-l")),
        ("IMG --image-cache=/c -- ls --image-cache /other", ("ls", "--image-cache", "/other")),
        ("IMG --image-cache /c -- -odd", ("-odd",)),
        ("--image-cache /c IMG", ()),
    ],
)
def test_options_of_ours_may_follow_the_image_and_the_rest_is_the_programs(
    words: str, command: tuple[str, ...]
) -> None:
    found = mount.make_context("mount", words.split()).params
    assert (found["image"], found["cache_root"], program_of(found["command"])) == ("IMG", "/c", command)


def test_an_option_that_is_not_known_is_no_program() -> None:
    with pytest.raises(click.NoSuchOption, match="--image-cach"):
        mount.make_context("mount", ["IMG", "--image-cach", "/c", "ls"])
