"""The Containerfile: linted, small and unprivileged. To build it takes a registry for its base: see the last test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "kubernetes" / "Containerfile"
TEXT = FILE.read_text()
#: Instructions, continued lines joined.
LINES = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line.strip()
]
TRY = "ROBUST_TEST_IMAGE"


def values(instruction: str) -> list[str]:
    return [line[1] for line in LINES if line[0] == instruction]


def test_a_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: it has no binary for this machine")
    done = subprocess.run([hadolint, "--strict-labels", str(FILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_its_base_is_a_version_and_no_moving_name() -> None:
    (base,) = values("ARG")
    assert re.fullmatch(r"BASE=docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+", base)
    assert set(values("FROM")) == {"${BASE} AS wheel", "${BASE}"}


def test_what_runs_is_nobody_special_and_process_1() -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", values("USER")[-1]), "by number, which Kubernetes can check"
    assert values("ENTRYPOINT") == ['["robust-run"]']
    assert not values("CMD")


def test_compilers_and_sources_stay_behind() -> None:
    last = [line for line in TEXT.split("FROM ${BASE}\n")[1].splitlines() if line.startswith(("COPY", "ADD"))]
    assert not last, "the last stage has the wheel mounted, not copied"
    assert not values("ADD")


def test_what_it_copies_is_there_and_is_all_that_a_wheel_is_made_of() -> None:
    sources = [word for line in values("COPY") for word in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    made_of = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "docs", "robust_run"}
    assert made_of <= set(sources)


def test_no_secret_is_in_it() -> None:
    assert not re.search(r"(?i)token|password|secret", TEXT)


@pytest.mark.timeout(1800)
def test_it_is_built_and_says_its_version() -> None:
    builder = shutil.which("podman") or shutil.which("buildah")
    if builder is None or not os.environ.get(TRY):
        pytest.skip(f"an image is only built with {TRY}=1 and podman: its base comes from a registry")
    name = "robust-run-test"
    subprocess.run([builder, "build", "-f", str(FILE), "-t", name, str(ROOT)], check=True)
    said = subprocess.run([builder, "run", "--rm", name, "--version"], check=True, capture_output=True, text=True)
    assert said.stdout.strip()
