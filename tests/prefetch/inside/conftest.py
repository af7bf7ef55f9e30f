"""An image for all tests of a process, and what this machine allows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from robust_run.mounts.ladder import KernelFacts
from robust_run.prefetch.rules.types import BlockMap
from tests.prefetch.image.tools import python_path
from tests.prefetch.inside.rootfs import make_image, ordinary_user

GATHER = """
import os, sys, tempfile, msgspec
from robust_run.mounts.facts import gather
with tempfile.TemporaryDirectory() as folder:
    sys.stdout.buffer.write(msgspec.json.encode(gather(folder, os.environ)))
"""


@pytest.fixture(scope="session")
def public_folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach; pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="robust-run-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def image(public_folder: Path) -> tuple[str, BlockMap]:
    return make_image(public_folder)


def _facts(argv: list[str], env: dict[str, str]) -> KernelFacts:
    done = subprocess.run([*argv, "-c", GATHER], env=env, capture_output=True, check=True, cwd="/")
    return msgspec.json.decode(done.stdout, type=KernelFacts)


@pytest.fixture(scope="session")
def my_facts() -> KernelFacts:
    return _facts([sys.executable], {**os.environ, "PYTHONPATH": python_path()})


@pytest.fixture(scope="session")
def users_facts() -> KernelFacts:
    return _facts(*ordinary_user())


@pytest.fixture
def users_folder(public_folder: Path) -> Callable[[str], Path]:
    """Make a folder that the ordinary user owns."""

    def make(name: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=name, dir=public_folder))
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        return folder

    return make
