"""The click command, made from the table of options; and `parse`, the only thing the rest of the launcher calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from robust_run.errors import UserError
from robust_run.launcher.start.options.arguments import canonical
from robust_run.launcher.start.options.options import (
    OPTIONS,
    RESUMABLE,
    OptionDescription,
    Options,
)
from robust_run.version import __version__

_PROGRAM = "robust-run"
_USAGE = f"{_PROGRAM} [options] SCRIPT [options of SCRIPT]"
_BY_NAME = {option.name: option for option in OPTIONS}
_Source = click.core.ParameterSource


class Answered(Exception):  # noqa: N818 - not an error: the answer to --help or --version
    """Raised instead of returning options: print `text` on stdout and exit with 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Options:
    """Return the options in `argv` (without the program's name) and, where it says nothing, in `env`.

    An empty variable counts as not set. Raises UserError, one line, for everything that cannot be understood, and
    `Answered` for -h, --help and --version.
    """
    words = canonical(argv)
    if words == ["--version"]:
        raise Answered(f"{_PROGRAM} {__version__}")
    if words in (["-h"], ["--help"]):
        from robust_run.launcher.start.options.help_page import page

        raise Answered(page(is_long=words == ["--help"]))
    command = _command()
    try:
        context = command.make_context(_PROGRAM, words, default_map=_from_environment(env))
    except click.ClickException as error:
        raise UserError(_one_line(error, env)) from None
    values = dict(context.params)
    given = frozenset(option.name for option in OPTIONS if _source(context, option) is not _Source.DEFAULT)
    script, *script_args = values.pop("script") or (None,)
    if values["resume"] is not None:
        typed = frozenset(name for name in given if _source(context, _BY_NAME[name]) is _Source.COMMANDLINE)
        return _resuming(values, given, typed, script)
    if values["roles"] is not None:
        if script is not None:
            raise UserError(
                f"--roles FILE says what is run; leave {script!r} and what follows it out, or put it into a role's command"
            )
        script = ""
    if values["node_label"] is not None and values["roles"] is None:
        raise UserError("--node-label says which roles run on this node: it needs --roles FILE")
    if script is None:
        raise UserError(f"no script given: {_USAGE}")
    return Options(training_script=script, training_script_args=tuple(script_args), given=given, **values)


def _source(context: click.Context, option: OptionDescription) -> click.core.ParameterSource:
    return context.get_parameter_source(option.field) or _Source.DEFAULT


def _resuming(values: Mapping[str, Any], given: frozenset[str], typed: frozenset[str], script: str | None) -> Options:
    """Return the options of a command line with --resume. What the environment says of jobs is not about this one."""
    if script is not None:
        raise UserError(f"--resume takes the job from its journal; leave {script!r} and what follows it out")
    unwanted = sorted(typed - {*RESUMABLE, "resume"})
    if unwanted:
        allowed = ", ".join(f"--{name}" for name in RESUMABLE)
        raise UserError(
            f"--resume takes the job from its journal; leave --{unwanted[0]} out (only {allowed} may be given)"
        )
    kept = given & {*RESUMABLE, "resume"}
    fields = {_BY_NAME[name].field for name in kept}
    return Options(training_script="", given=kept, **{field: values[field] for field in fields})


def _command() -> click.Command:
    parameters: list[click.Parameter] = [_click_option(option) for option in OPTIONS]
    parameters.append(click.Argument(["script"], nargs=-1, type=click.UNPROCESSED))
    return click.Command(
        _PROGRAM,
        params=parameters,
        add_help_option=False,
        context_settings={"allow_interspersed_args": False},
    )


def _click_option(option: OptionDescription) -> click.Option:
    names = [f"--{option.name}", option.field]
    if option.kind == "flag":
        return click.Option(names, is_flag=True, default=False)
    if option.kind in ("paths", "lines"):
        return click.Option(names, multiple=True, type=click.UNPROCESSED)
    return click.Option(names, type=_click_type(option), default=option.default)


def _click_type(option: OptionDescription) -> Any:  # ParamType is generic in some releases of click and not in others
    if option.choices:
        return click.Choice(option.choices)
    return {"whole": click.INT, "decimal": click.FLOAT}.get(option.kind, click.UNPROCESSED)


def _from_environment(env: Mapping[str, str]) -> dict[str, object]:
    """Return what the environment says, by field. Flags are decided here: torchrun takes only numbers for them."""
    values: dict[str, object] = {}
    for option in OPTIONS:
        value = env.get(option.env, "") if option.env else ""
        if not value:
            continue
        if option.kind == "flag":
            try:
                values[option.field] = bool(int(value))
            except ValueError:
                raise UserError(f"{option.env} must be 1 or 0, not {value!r}: it stands for --{option.name}") from None
        elif option.kind == "paths":
            values[option.field] = tuple(value.split(os.pathsep))
        elif option.kind == "lines":
            values[option.field] = tuple(line.strip() for line in value.splitlines() if line.strip())
        else:
            values[option.field] = value
    return values


def _one_line(error: click.ClickException, env: Mapping[str, str]) -> str:
    """Return click's complaint as one line that names the option, or the variable if the value came from there."""
    message = " ".join(error.format_message().split())
    if not isinstance(error, click.BadParameter) or error.param is None:
        return message
    reason = " ".join(error.message.split()).rstrip(".")
    option = next((each for each in OPTIONS if each.field == error.param.name), None)
    if option is None:
        return message
    source = error.ctx.get_parameter_source(option.field) if error.ctx else None
    if source is _Source.DEFAULT_MAP and option.env in env:
        return f"{option.env}: {reason}; it stands for --{option.name}"
    return f"--{option.name}: {reason}"
