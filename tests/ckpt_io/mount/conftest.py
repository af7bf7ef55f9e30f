"""Mounts for tests, that are gone when the test is over, whatever it did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from robust_run.ckpt_io.mount import mounts
from robust_run.ckpt_io.mount.manage import ServedMount, check_device, mount
from robust_run.ckpt_io.mount.mounts import ours, unmount
from robust_run.ckpt_io.mount.types import MountOptions
from robust_run.errors import PlatformError

Mount = Callable[..., ServedMount]


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skip where there is no FUSE, or where we may not use it."""
    try:
        check_device()
        import mfusepy  # noqa: F401
    except (PlatformError, OSError, ImportError) as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent mount."""
    monkeypatch.setattr(mounts, "_ANSWER_S", 60.0)


@pytest.fixture
def mounted(fuse: None, tmp_path: Path) -> Iterator[Mount]:
    """Mount a folder of checkpoints; its options by name."""
    numbers = iter(range(100))
    with ExitStack() as stack:

        def make(url: Path, **options: Any) -> ServedMount:
            point = str(tmp_path / f"mnt{next(numbers)}")
            try:
                made = mount(MountOptions(url=str(url), point=point, lifeline=True, **options), lambda text: None)
            except PlatformError as error:
                if "not permitted" in str(error):
                    pytest.skip(str(error))
                raise
            stack.callback(_remove, point)
            stack.enter_context(made)
            return made

        yield make


def _remove(point: str) -> None:
    if any(each.point == os.path.realpath(point) for each in ours()):
        unmount(os.path.realpath(point), lazily=True)
