"""Virtual environments for tests, what is installed into them, and what must be true of them after a restore."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snapshot.packages import LONG_NAME, make_compiled_wheel, make_index, make_project

from robust_run.snapshot import platforms
from robust_run.snapshot.building import BuildPlan, described
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.ingredients import collect
from robust_run.snapshot.pack import Packed
from robust_run.snapshot.roots import ask, captured_roots
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import SnapshotManifest

TREE = Path(__file__).parents[2]
#: Prints what a program sees in a restored environment.
LOOK = """
import importlib.util, json, os, stat, subprocess, sys
site = next(p for p in sys.path if p.endswith("site-packages") and p.startswith(sys.prefix))
import oddpack, nsx.one, nsx.two, inplace, upgraded
def text(*parts): return open(os.path.join(*parts)).read()
def mode(*parts): return oct(stat.S_IMODE(os.lstat(os.path.join(*parts)).st_mode))
found = {
 "value": oddpack.VALUE, "names": [nsx.one.NAME, nsx.two.NAME], "pth": sys.from_pth, "inplace": inplace.WHERE,
 "upgraded": upgraded.V, "old": importlib.util.find_spec("upgraded.old") is not None,
 "gone": importlib.util.find_spec("gone") is not None,
 "odd": sorted(os.listdir(os.path.join(site, "oddpack", "data"))),
 "data": text(sys.prefix, "share/oddpack/data.txt"),
 "script": subprocess.run([os.path.join(sys.prefix, "bin/odd")], capture_output=True, text=True).stdout.strip(),
 "shebang": text(sys.prefix, "bin/odd").splitlines()[0], "old_script": text(sys.prefix, "bin/oddscript").splitlines()[0],
 "link": os.readlink(os.path.join(site, "link")), "linked": text(site, "link"),
 "read_only": mode(site, "read_only.txt"), "setuid": mode(site, "setuid"), "secret": mode(site, "secret"),
 "replaced": sorted(os.listdir(os.path.join(site, "replaced"))),
 "became_folder": os.path.isdir(os.path.join(site, "was_file")), "became_file": os.path.isfile(os.path.join(site, "was_folder")),
 "flags": open(oddpack.__cached__, "rb").read(8)[4:].hex(), "from": oddpack.main.__code__.co_filename,
}
try:
    import compiled
    found["compiled"] = compiled.answer()
except ImportError:
    found["compiled"] = None
print(json.dumps(found))
"""


class Environment:
    """A virtual environment, a folder of wheels and a project."""

    def __init__(self, folder: Path, python: str = sys.executable, pip: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.path = folder / "an env"
        argv = [python, "-m", "venv", "--without-pip", str(self.path)]
        subprocess.run(argv, check=True, timeout=120)
        self.python = str(self.path / "bin/python")
        self.index = make_index(folder / "wheels")
        self.has_compiler = make_compiled_wheel(self.index) is not None
        self.project = make_project(folder / "my project")
        self.work = folder / "work"
        self.work.mkdir()
        self._pip = pip or (python, "-m", "pip")
        site = ask([self.python], self.environment())[1][0]
        self.site = site
        self.install("upgraded==1.0")
        for name in ("replaced", "was_folder"):
            os.makedirs(f"{site}/{name}/deep")
            Path(f"{site}/{name}/before.txt").write_text("before")
        Path(f"{site}/was_file").write_text("before")

    def environment(self) -> dict[str, str]:
        kept = ("PATH", "HOME", "PYTHONPATH", "LANG")
        return {**{name: os.environ[name] for name in kept if name in os.environ}, "PYTHONNOUSERSITE": "1"}

    def pip(self, *arguments: str) -> str:
        argv = [*self._pip, "--python", self.python, "install", "-q", "--no-index", "--find-links", str(self.index)]
        return shlex.join([*argv, "--no-cache-dir", "--root-user-action=ignore", *arguments])

    def install(self, *arguments: str) -> None:
        environment = {**self.environment(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run(["/bin/sh", "-c", self.pip(*arguments)], env=environment, check=True, timeout=120)

    def commands(self) -> tuple[str, ...]:
        site = shlex.quote(self.site)
        names = ["oddpack", "othernsx", "upgraded==2.0", *(["compiled"] if self.has_compiler else [])]
        return (
            self.pip(*names),
            self.pip("--no-build-isolation", "--no-deps", "-e", str(self.project)),
            f"cd {site} && echo target > target.txt && ln -s target.txt link && echo r > read_only.txt && chmod 444 read_only.txt"
            " && echo s > setuid && chmod 6755 setuid && echo p > secret && chmod 600 secret && mkfifo pipe"
            " && printf x > \"oddpack/data/$(printf 'new\\nline.txt')\"",
            f"cd {site} && rm -r replaced && mkdir replaced && echo after > replaced/after.txt"
            " && rm was_file && mkdir was_file && echo x > was_file/x && rm -r was_folder && echo f > was_folder",
        )

    def setup(self, commands: tuple[str, ...] | None = None, **changes: Any) -> CaptureSetup:
        prefix, paths, user = ask([self.python], self.environment())
        settings: dict[str, Any] = {
            "commands": commands if commands is not None else self.commands(),
            "cwd": str(self.folder),
            "roots": captured_roots(prefix, paths, user),
            "environment": self.environment(),
            "python": (self.python,),
            "work_folders": (str(self.work),),
            "watch": (),
            **changes,
        }
        return CaptureSetup(**settings)

    def plan(self, setup: CaptureSetup) -> BuildPlan:
        facts = platforms.here()
        found = collect(
            setup.commands, cwd=setup.cwd, roots=setup.roots, facts=facts, environment=setup.environment, variables=()
        )
        made = key.make(found.ingredients)
        return BuildPlan(key=made, setup=setup, platform=facts.platform, pinned=found.pinned)

    def manifest(self, captured: Captured, packed: Packed, setup: CaptureSetup) -> SnapshotManifest:
        return described(self.plan(setup), captured, packed, 1_790_000_000.0)

    def look(self) -> dict[str, Any]:
        """Return what a program sees in the environment now. Fails if it does not run."""
        argv = [self.python, "-c", LOOK]
        done = subprocess.run(argv, env=self.environment(), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def check_look(environment: Environment, found: dict[str, Any]) -> None:
    """All that was installed is there, as it was, and nothing that was removed."""
    assert found["value"] == 42
    assert found["names"] == ["one", "two"]
    assert found["pth"] == "yes"
    assert found["inplace"].startswith(str(environment.project))
    assert (found["upgraded"], found["old"], found["gone"]) == (2, False, False)
    assert LONG_NAME in found["odd"]
    assert {"with space.txt", "ünïcödé-文字.txt", "new\nline.txt", "-dash.txt"} <= set(found["odd"])
    assert found["data"] == "data\n"
    assert found["script"] == f"script of {environment.path}"
    assert found["old_script"].startswith(f"#!{environment.path}/bin/python")
    assert (found["link"], found["linked"]) == ("target.txt", "target\n")
    assert (found["read_only"], found["setuid"], found["secret"]) == ("0o444", "0o755", "0o644")
    assert found["replaced"] == ["after.txt"]
    assert found["became_folder"] and found["became_file"]
    assert found["flags"] == "01000000"  # bytecode that is not checked against its source (PEP 552)
    assert found["from"].startswith(str(environment.path))
    assert found["compiled"] == (42 if environment.has_compiler else None)


def needs_squashfs_tools() -> None:
    """Skip a test where images cannot be made."""
    import shutil

    for tool in ("mksquashfs", "unsquashfs"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
