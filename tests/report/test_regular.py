"""What is no regular file is refused at once: nobody waits for a writer of a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.errors import PlatformError
from robust_run.report.files import incident as incident_file
from robust_run.report.files import startup as startup_file


def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "startup.json")
    os.mkfifo(path)
    with pytest.raises(PlatformError, match="no regular file"):
        startup_file.read(path)
    with pytest.raises(OSError, match="no regular file"):
        incident_file.read(path)
    with pytest.raises(OSError, match="no regular file"):
        incident_file.read_scene(path)
