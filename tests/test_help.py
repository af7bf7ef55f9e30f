"""What `robust` says of itself, and what shells complete."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from robust_run.completion import SHELLS, Shell, script
from robust_run.errors import UserError
from robust_run.launcher.start.options.options import OPTIONS
from robust_run.robust_cli import SECTIONS, robust


def said(*words: str) -> str:
    result = CliRunner().invoke(robust, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_command_is_listed_once_with_its_whole_first_sentence() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == robust.list_commands(click.Context(robust))
    assert len(set(listed)) == len(listed)
    assert "..." not in said("--help").partition("[ARGS]...")[2]


def test_help_of_a_command_is_found_by_name() -> None:
    assert said("help") == said("--help")
    assert said("help", "ckpt", "restore").partition("\n")[2] == said("ckpt", "restore", "--help").partition("\n")[2]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["statsu"], "did you mean robust status?"),
        (["reprot"], "did you mean robust report?"),
        (["xyzzy"], "robust help lists them"),
        (["help", "stauts"], "did you mean robust status?"),
    ],
)
def test_a_misspelt_command_has_one_guess(words: list[str], hint: str) -> None:
    with pytest.raises(UserError, match="there is no command") as caught:
        robust(words, standalone_mode=False)
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_script(shell: Shell, tmp_path: Path) -> None:
    text = script(shell, robust)
    assert all(option.name in text for option in OPTIONS)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "script").write_text(text)
    done = subprocess.run([program, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (["--standb"], ["--standby"]),
        (["--on-hang", "e"], ["evict"]),
        (["--ckpt-copies", ""], ["auto", "0", "1"]),
        (["trai"], ["train.py"]),
    ],
)
def test_bash_completes_options_their_values_and_files(typed: list[str], completed: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = " ".join(f"'{word}'" for word in ("robust-run", *typed))
    asked = (
        f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _robust_run_completion; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", f"{script('bash', robust)}\n{asked}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.split() == completed, done.stderr
