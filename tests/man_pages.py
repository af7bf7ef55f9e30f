"""Makes docs/man/*.1 from the table of options and the tree of commands; `python tests/generated_docs.py` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator

import click

from robust_run.launcher.start.options import help_page
from robust_run.launcher.start.options.options import GROUPS, HELP_OPTIONS, OPTIONS
from robust_run.robust_cli import EXAMPLES, SECTIONS, robust

_SEE = {"robust-run.1": "robust(1)", "robust.1": "robust-run(1)"}


def man_pages() -> dict[str, str]:
    """Return each page's text by its file name."""
    return {
        name: "\n".join((*lines, *_section("SEE ALSO"), f"{_SEE[name]}; robust docs shows the guide.")) + "\n"
        for name, lines in (("robust-run.1", _of_robust_run()), ("robust.1", _of_robust()))
    }


def _of_robust_run() -> Iterator[str]:
    yield from _head("robust-run", "run a script in several processes, and restart them when one fails")
    yield from _section("SYNOPSIS")
    yield ".B robust-run"
    yield "[options] SCRIPT [options of SCRIPT]"
    yield from _section("EXAMPLES")
    for line, purpose in help_page.EXAMPLES:
        yield from _item(line, purpose)
    for group in GROUPS:
        rows = [help_page.row(option) for option in (*OPTIONS, *HELP_OPTIONS) if option.group == group]
        yield from _section(f"OPTIONS, {group}")
        for names, text in rows:
            yield from _item(names, text)


def _of_robust() -> Iterator[str]:
    yield from _head("robust", "look after jobs of robust-run and what they need")
    yield from _section("SYNOPSIS")
    yield ".B robust"
    yield "COMMAND [ARGS]..."
    yield from _section("EXAMPLES")
    for line, purpose in EXAMPLES:
        yield from _item(line, purpose)
    context = click.Context(robust, info_name="robust")
    for title, commands in SECTIONS.items():
        yield from _section(title)
        for name in commands:
            command = robust.get_command(context, name)
            assert command is not None
            yield from _command(("robust", name), command)


def _command(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    """Yield a command's paragraph, and those of its own commands."""
    yield from _item(" ".join((*words, *_arguments(command))), command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield ".RS"
        for each in options:
            yield from _item(", ".join(each.opts) + _value(each), each.help or "")
        yield ".RE"
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            if found is not None and not found.hidden:
                yield from _command((*words, name), found)


def _arguments(command: click.Command) -> list[str]:
    return [each.metavar or (each.name or "").upper() for each in command.params if isinstance(each, click.Argument)]


def _value(option: click.Option) -> str:
    """Return what follows an option's name. Written here: what click writes differs from version to version."""
    if option.is_flag or option.count:
        return ""
    kind = option.type
    choices = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else ""
    return f" {option.metavar or choices or (option.name or '').upper()}"


def _head(name: str, purpose: str) -> Iterator[str]:
    yield f'.TH {name.upper()} 1 "" "robust-run" "User Commands"'
    yield from _section("NAME")
    yield f"{_roff(name)} \\- {_roff(purpose)}"


def _section(title: str) -> Iterator[str]:
    yield f'.SH "{_roff(title).upper()}"'


def _item(names: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {_roff(names)}"
    yield _line(text)


def _words(text: str) -> str:
    return " ".join(text.replace("\b", " ").split())


def _line(text: str) -> str:
    """Return text as one line of running text: a dot or an apostrophe at its beginning would be an order."""
    line = _roff(_words(text))
    return f"\\&{line}" if line[:1] in (".", "'", "") else line


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
