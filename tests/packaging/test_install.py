"""What is published: a wheel and an sdist that are whole, and install on every Python that is promised."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: Longer than pip needs on a busy machine with a slow registry.
LIMIT_S = 900.0

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")


def build(tree: Path, target: Path, *kinds: str) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    done = subprocess.run(
        [*argv, *(word for kind in kinds for word in ("-t", kind))], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def files_of(wheel: Path) -> dict[str, int]:
    """Return what a wheel has, without what is compiled: name and length."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: each.file_size
            for each in archive.infolist()
            if not each.filename.endswith((".so", "/WHEEL", "/RECORD"))
        }


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_the_package_and_all_of_the_guide(built: Path) -> None:
    names = set(files_of(one(built, "*.whl")))
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "robust_run").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert package <= names
    guide = {
        f"robust_run/guide_files/{path.relative_to(ROOT / 'docs').as_posix()}"
        for path in (ROOT / "docs").rglob("*")
        if path.is_file() and path.parent.name != "man"
    }
    assert guide <= names
    assert {name for name in names if "/share/man/man1/" in name and name.endswith(".1")}


def test_nothing_else_is_in_the_wheel(built: Path) -> None:
    tops = {name.split("/")[0] for name in files_of(one(built, "*.whl"))}
    version = metadata_of(one(built, "*.whl"))["Version"]
    assert tops == {"robust_run", f"robust_run-{version}.dist-info", f"robust_run-{version}.data"}


def test_the_wheel_made_of_the_sdist_is_the_same(built: Path, tmp_path: Path) -> None:
    with tarfile.open(one(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    again = build(one(tmp_path, "robust_run-*"), tmp_path / "dist", "wheel")
    assert files_of(one(again, "*.whl")) == files_of(one(built, "*.whl"))


def test_metadata_says_what_it_is_for_whom_and_under_which_licence(built: Path) -> None:
    metadata = metadata_of(one(built, "*.whl"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Summary"]
    assert metadata["Keywords"]
    assert "torchrun" in str(metadata.get_payload())
    classifiers = set(metadata.get_all("Classifier", []))
    assert {f"Programming Language :: Python :: {version}" for version in VERSIONS} <= classifiers
    assert metadata["Requires-Python"] == f">={VERSIONS[0]}"


def test_every_classifier_is_one_that_indexes_know(built: Path) -> None:
    from trove_classifiers import classifiers

    assert set(metadata_of(one(built, "*.whl")).get_all("Classifier", [])) <= classifiers


@pytest.mark.parametrize("version", VERSIONS)
def test_it_installs_and_its_commands_run(version: str, built: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if not python:
        pytest.skip(f"Python {version} is not here")
    wheel = one(built, "*.whl")
    new = tmp_path / "venv"
    run(python, "-m", "venv", "--without-pip", str(new))
    # torch is gigabytes in the making of a venv, and nothing that is tried here imports it.
    needs = [
        each for each in metadata_of(wheel).get_all("Requires-Dist", []) if not re.match(r"torch\b|.*extra ==", each)
    ]
    assert len(needs) > 8
    # Our own pip runs there: to make another takes as long as all it does. What is imported is all that is compiled.
    pip = (sys.executable, "-m", "pip", "--python", str(new / "bin/python"), "--disable-pip-version-check", "install")
    run(*pip, "--quiet", "--no-compile", *needs)
    run(*pip, "--quiet", "--no-compile", "--no-deps", str(wheel))
    robust = str(new / "bin/robust")
    assert "Steer a job" in run(robust, "--help")
    assert "--nproc-per-node" in run(str(new / "bin/robust-run"), "--help")
    assert run(str(new / "bin/robust-run"), "--version").split()[-1] == metadata_of(wheel)["Version"]
    assert run(robust, "docs", "start").startswith("# Start here")
    assert str(new) in run(robust, "docs", "--folder"), "not those of this checkout"
    run(robust, "dashboard", "-o", str(tmp_path / "board.json"))
    assert json.loads((tmp_path / "board.json").read_text())["panels"]
    assert (new / "share/man/man1/robust-run.1").exists()


@lru_cache
def interpreter(version: str) -> str:
    """Return a Python of a version that can make environments; empty if this machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [
        sys.executable if f"{sys.version_info[0]}.{sys.version_info[1]}" == version else "",
        *(shutil.which(f"python{version}", path=folder) or "" for folder in os.get_exec_path()),
        *(str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))),
    ]
    probe = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", probe], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return ""


def run(*argv: str) -> str:
    """Run a command in a folder that is not the checkout, and without what leads to it; return what it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env=env, timeout=LIMIT_S)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout
