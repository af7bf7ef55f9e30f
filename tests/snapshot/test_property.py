"""Whatever commands do to a folder: captured and restored on any rung, it is as if they had been run there."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefetch.private_mounts import privately
from snapshot.environments import needs_squashfs_tools
from snapshot.made import described

from robust_run.snapshot.capture.capturing import CaptureSetup, capture, discard
from robust_run.snapshot.capture.stage import plain_mode
from robust_run.snapshot.pack import pack
from robust_run.snapshot.restore import extract, in_place, mounting
from robust_run.snapshot.rules.types import Root

NAMES = st.sampled_from(["a", "b c", "ü"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, PATHS),
    st.tuples(st.just("folder"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS, PATHS),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("mode"), PATHS, PATHS),
    st.tuples(st.just("empty"), PATHS, PATHS),
)


def shell(steps: list[tuple[str, str, str]]) -> str:
    """Return a script; a step that is not possible is passed over."""
    lines = []
    for number, (what, one, other) in enumerate(steps):
        path, target = shlex.quote(one), shlex.quote(other)
        lines.append(
            {
                "write": f"echo {number} > {path}",
                "folder": f"mkdir -p {path}",
                "remove": f"rm -rf {path}",
                "move": f"mv -T {path} {target}",
                "link": f"ln -snf {target} {path}",
                "mode": f"chmod 741 {path}",
                "empty": f"rm -rf {path} && mkdir {path}",
            }[what]
            + " 2>/dev/null || true"
        )
    return "\n".join(lines) or "true"


def tree_of(top: str) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            place = os.path.join(folder, name)
            status = os.lstat(place)
            path = os.path.relpath(place, top)
            if stat.S_ISLNK(status.st_mode):
                found[path] = ("l", os.readlink(place))
            elif stat.S_ISDIR(status.st_mode):
                found[path] = ("d",)
            else:
                found[path] = ("f", plain_mode(status.st_mode), Path(place).read_text())
    found.pop(in_place.MARK, None)
    return found


def restored(folder: Path, script: str, way: str) -> list[dict[str, tuple[object, ...]]]:
    """Return what the root looks like after each way to restore. The root itself is as it was before, until the last."""
    root = folder / "root"
    setup = CaptureSetup(
        commands=(script,),
        cwd=str(root),
        roots=(Root(folder="0", path=str(root)),),
        environment={"PATH": os.environ["PATH"]},
        python=(sys.executable,),
        work_folders=(str(folder),),
        way=way,
        watch=(),
    )
    before = folder / "before"
    shutil.copytree(root, before, symlinks=True)
    captured = capture(setup)
    try:
        packed = pack(captured, str(folder / "image.sqsh"))
        manifest = described(captured, packed)
    finally:
        discard(captured)
    if way == "scan":
        shutil.rmtree(root)
        before.rename(root)
    (folder / "at").mkdir()
    mounted = mounting.mount(manifest, packed.path, str(folder / "at"), reader="kernel", userns=False)
    found = [tree_of(str(root))]
    mounted.undo()
    unpacked = extract.extract(manifest, packed.path, str(folder / "cache"))
    in_place.copy_over(manifest, extract.items_of(unpacked, manifest), unpacked)
    return [*found, tree_of(str(root))]


@pytest.mark.parametrize("way", ["overlay", "scan"])
def test_restored_is_as_if_the_commands_had_been_run(way: str) -> None:
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")

    @privately
    def check_one(base: str, script: str) -> None:
        with tempfile.TemporaryDirectory(prefix="robust-test-") as name:
            folder = Path(name)
            for place in ("root", "truly"):
                (folder / place).mkdir()
                subprocess.run(["/bin/sh", "-c", base], cwd=folder / place, check=True, timeout=60)
            subprocess.run(["/bin/sh", "-c", script], cwd=folder / "truly", check=True, timeout=60)
            truly = tree_of(str(folder / "truly"))
            assert restored(folder, script, way) == [truly, truly]

    @given(st.lists(STEPS, max_size=8), st.lists(STEPS, max_size=8))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def check(base: list[tuple[str, str, str]], steps: list[tuple[str, str, str]]) -> None:
        check_one(shell(base), shell(steps))

    check()
