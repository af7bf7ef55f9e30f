"""startup.json: comes back as it was written; what is no such file is an error in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_starts import slow_node, startup_of

from robust_run.errors import PlatformError
from robust_run.report.files import startup as file


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / file.NAME)
    startup = startup_of(slow_node())
    file.write(path, startup)
    assert file.read(path) == startup
    assert [each.name for each in tmp_path.iterdir()] == [file.NAME]


def test_none_is_none(tmp_path: Path) -> None:
    assert file.read(str(tmp_path / file.NAME)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"run_id": 3}',
        b"[" * 100_000,
        b'{"run_id": "x", "schema": 2}',
        b'{"run_id": "x", "attempts": [{}]}',
        b'{"run_id": "' + b"x" * (file.LARGEST_BYTES + 1) + b'"}',
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / file.NAME
    path.write_bytes(content)
    with pytest.raises(PlatformError) as refused:
        file.read(str(path))
    assert "startup.json" in str(refused.value)
    assert "\n" not in str(refused.value)
