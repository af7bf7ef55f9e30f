"""What may be put on `sys.path`, and what would be half of something there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from snapshot.made import manifest_of

from robust_run.snapshot.restore import target
from robust_run.snapshot.rules.types import Item, Root, SnapshotManifest

SITE = "lib/python3.11/site-packages"
MANIFEST = manifest_of(roots=(Root(folder="0", path="/opt/env", changed=9),))


def items(*paths: str, removed: tuple[str, ...] = ()) -> list[Item]:
    """Files with all folders above them, in the site-packages; and names that were removed."""
    folders = {f"{SITE}/{path}".rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 2)}
    parents = {"/".join(SITE.split("/")[:count]) for count in range(1, 4)}
    return [
        *(Item(0, path, "w") for path in removed),
        *(Item(0, path, "d", 0o755) for path in sorted(folders | parents)),
        *(Item(0, f"{SITE}/{path}", "f", 0o644, 1, "0" * 32) for path in paths),
    ]


def why_not(found: list[Item], manifest: SnapshotManifest = MANIFEST, **base: list[str]) -> str:
    """`base`: what packages of the environment have."""
    return target.why_not(manifest, found, {f"/opt/env/{SITE}/{name}": files for name, files in base.items()})


def test_new_packages_can_be() -> None:
    assert why_not(items("pkg/__init__.py", "single.py", "pkg-1.0.dist-info/RECORD")) == ""


def test_a_package_that_was_replaced_as_a_whole_can_be() -> None:
    found = items(
        "pkg/__init__.py", "pkg/new.py", "pkg-2.0.dist-info/RECORD",
        removed=(f"{SITE}/pkg/old.py", f"{SITE}/pkg-1.0.dist-info"),
    )  # fmt: skip
    assert why_not(found, pkg=["__init__.py", "old.py"]) == ""


def test_a_package_of_which_a_part_changed_would_hide_its_other_files() -> None:
    assert why_not(items("pkg/__init__.py"), pkg=["__init__.py", "rest.py"]) == (
        f"/opt/env/{SITE}/pkg: only a part of this package changed: rest.py would not be found"
    )


@pytest.mark.parametrize("name", ["pkg", "pkg/part.py", "single.py", "other-1.0.dist-info"])
def test_what_was_removed_would_still_be_imported(name: str) -> None:
    found = items("new/__init__.py", removed=(f"{SITE}/{name}",))
    assert why_not(found) == f"{SITE}/{name} was removed, and would still be imported"


def test_a_removed_script_is_no_package() -> None:
    assert why_not(items("new/__init__.py", removed=("bin/old",))) == ""


def test_parts_of_a_namespace_come_together_from_all_folders() -> None:
    assert why_not(items("google/new/__init__.py"), google=["old/__init__.py"]) == ""
    assert target.shared(MANIFEST, items("google/new/__init__.py")) == []


def test_a_snapshot_without_packages_cannot_be() -> None:
    assert why_not([Item(0, "share", "d", 0o755)]) == "it has no packages of Python"


def test_a_program_and_its_children_import_what_was_unpacked(tmp_path: Path) -> None:
    """Also what `.pth` files name; and the program's own sitecustomize runs."""
    site, theirs, place = tmp_path / "un packed" / "r0" / SITE, tmp_path / "theirs", tmp_path / "project"
    for folder in (site / "pkg", site.parents[2] / "bin", theirs, place):
        folder.mkdir(parents=True)
    (site / "pkg/__init__.py").write_text("V = 7\n")
    (site / "z.pth").write_text(f"{place}\nimport sys; sys.from_pth = True\n")
    (place / "inplace.py").write_text("V = 8\n")
    (theirs / "sitecustomize.py").write_text("import sys; sys.theirs = True\n")
    (site.parents[2] / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    (site.parents[2] / "bin/tool").chmod(0o755)
    found = [*items("pkg/__init__.py", "z.pth"), Item(0, "bin", "d", 0o755)]
    env = {"PATH": os.defpath, "PYTHONPATH": str(theirs)}
    made = target.environment(MANIFEST, found, str(tmp_path / "un packed"), env)
    look = "import sys, pkg, inplace; print(pkg.V, inplace.V, sys.from_pth, sys.theirs)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}], check=True)"
    for code in (look, nested):
        done = subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("7 8 True True\n", "")
    assert subprocess.run(["tool"], env=made, capture_output=True, timeout=60).stdout == b"tool\n"
