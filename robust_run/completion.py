"""Shell completion of both commands: scripts for bash, zsh and fish, made from the table of options and the tree of commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click
from click.shell_completion import get_completion_class

from robust_run.errors import PlatformError
from robust_run.launcher.start.options.options import HELP_OPTIONS, OPTIONS, OptionDescription

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")


def script(shell: Shell, robust: click.Command) -> str:
    """Return what a shell reads to complete `robust` and `robust-run`. Raises PlatformError: the shell is too old."""
    made = get_completion_class(shell)
    assert made is not None, "click knows the three"
    try:
        of_robust = made(robust, {}, "robust", "_ROBUST_COMPLETE").source()
    except RuntimeError as error:  # click asks bash for its version
        raise PlatformError(f"completion for {shell}: {error}") from error
    return f"{of_robust.strip()}\n\n{_OF_ROBUST_RUN[shell]((*OPTIONS, *HELP_OPTIONS))}"


def _bash(options: Sequence[OptionDescription]) -> str:
    values = "\n".join(
        f"        --{option.name}) COMPREPLY=($(compgen -W '{' '.join(option.choices)}' -- \"$word\")); return ;;"
        for option in options
        if option.choices
    )
    names = " ".join(f"--{option.name}" for option in options)
    return f"""_robust_run_completion() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    case "$before" in
{values}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W '{names}' -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -o bashdefault -F _robust_run_completion robust-run
"""


def _zsh(options: Sequence[OptionDescription]) -> str:
    rows = []
    for option in options:
        help_text = _plain(option.help).replace("[", "(").replace("]", ")").replace(":", " -")
        value = ""
        if option.kind not in ("flag", "maybe"):
            value = f":{_plain(option.metavar).replace(':', ' ')}:{_zsh_values(option)}"
        rows.append(f"        '*--{option.name}[{help_text}]{value}'")
    return f"""_robust_run_completion() {{
    _arguments -S \\
{chr(10).join(f"{row} " + chr(92) for row in rows)}
        '*:script:_files'
}}
compdef _robust_run_completion robust-run
"""


def _zsh_values(option: OptionDescription) -> str:
    return f"({' '.join(option.choices)})" if option.choices else "_files"


def _fish(options: Sequence[OptionDescription]) -> str:
    lines = []
    for option in options:
        words = ["complete -c robust-run", f"-l {option.name}", f"-d '{_plain(option.help)}'"]
        if option.short:
            words.append(f"-s {option.short}")
        if option.kind not in ("flag", "maybe"):
            words.append("-r")
        if option.choices:
            words.append(f"-f -a '{' '.join(option.choices)}'")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return a text that a shell takes as it is between single quotes."""
    return text.replace("'", "").replace("\\", "").replace("`", "")


_OF_ROBUST_RUN = {"bash": _bash, "zsh": _zsh, "fish": _fish}
