"""From what was typed to the commands of a set-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.planning import commands_of


def test_each_file_is_one_script_that_ends_at_its_first_failure(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("pip install \u00fc\n")
    found = commands_of(["make"], [str(tmp_path / "setup.sh")])
    assert found == ("make", "set -e\npip install \u00fc\n")


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"echo \xe4\n", "setup.sh: byte 5 is no UTF-8"), (b"\x7fELF\0\0", "setup.sh: byte 4 is zero")],
)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, data: bytes, words: str) -> None:
    """It ended in a traceback, once the commands were to be run."""
    (tmp_path / "setup.sh").write_bytes(data)
    with pytest.raises(SetupRefused, match=words):
        commands_of([], [str(tmp_path / "setup.sh")])


def test_so_is_such_a_command() -> None:
    with pytest.raises(SetupRefused, match=r"--setup 'echo \\udce4': byte 5 is no UTF-8"):
        commands_of(["echo \udce4"], [])
