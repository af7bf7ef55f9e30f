"""`robust`: everything around jobs that is not starting one. Each group of commands is a function below."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from robust_run.errors import RobustRunError, UserError
from robust_run.launcher.operator.commands.job_commands import COMMANDS
from robust_run.launcher.operator.commands.trace_commands import COMMANDS as TRACE_COMMANDS
from robust_run.own_process import collect_as_ever, collect_seldom
from robust_run.terminal import plain
from robust_run.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from robust_run.health.checks.plan import Wish
    from robust_run.health.checks.show import ChecksReport
    from robust_run.launcher.operator.code.remote import Versions
    from robust_run.launcher.operator.reading.several import OtherRuns
    from robust_run.slurm.rules.role_needs import RoleNeed

#: Groups of commands by name, and where each is.
LATE_GROUPS = {
    "top": ("robust_run.launcher.operator.commands.top_command", "top"),
    "check": ("robust_run.health.commands.check", "check"),
    "code": ("robust_run.launcher.operator.code.commands", "code"),
    "update": ("robust_run.launcher.operator.code.commands", "update"),
    "ckpt": ("robust_run.ckpt_io.commands.ckpt", "ckpt"),
    "env": ("robust_run.snapshot.commands", "env"),
    "image": ("robust_run.prefetch.commands", "image"),
    "explain": ("robust_run.launcher.operator.commands.explain_command", "explain"),
    "report": ("robust_run.launcher.operator.commands.report_commands", "report"),
    "outliers": ("robust_run.health.commands.outliers", "outliers"),
    "slurm": ("robust_run.slurm.commands", "slurm"),
    "plan": ("robust_run.planning.command", "plan"),
    "fleet": ("robust_run.launcher.operator.commands.fleet_command", "fleet"),
    "roles": ("robust_run.orchestrator.commands", "roles"),
    "warm": ("robust_run.launcher.start.warm.commands", "warm"),
    "ready": ("robust_run.launcher.operator.commands.deployment_commands", "ready"),
    "metrics-token": ("robust_run.launcher.operator.commands.deployment_commands", "metrics_token"),
    "docs": ("robust_run.guide", "docs"),
    "dashboard": ("robust_run.guide", "dashboard"),
}
#: How `robust --help` lists them.
SECTIONS = {
    "How is my job?": ("status", "top", "roles", "nodes", "events", "report", "fleet"),
    "What went wrong?": ("incident", "explain", "why", "stacks", "timeline", "outliers"),
    "Steer a job": ("restart", "stop", "update", "code", "evict", "readmit", "check"),
    "What jobs need": ("plan", "ckpt", "env", "image", "slurm", "warm"),
    "Deploy": ("ready", "metrics-token"),
    "More": ("docs", "dashboard", "completion", "help"),
}
EXAMPLES = (
    ("robust status", "the newest job below robust-runs/; name another by its folder or id"),
    ("robust why", "who waits for whom, now"),
    ("robust incident", "the newest failure: verdict, evidence, what was done"),
    ("robust ckpt restore hdfs://nn/ckpt/step-4000 /local/ckpt", "bring a checkpoint here, verified"),
)


#: A write to what is printed into fails with these. One to a file of ours names the file.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main() -> None:
    """Entry point of the `robust` command: 0 done, 1 what was looked for is not there, 2 a wrong command line."""
    collect_seldom()  # a fifth of what most commands take
    _open_what_is_closed()
    try:
        exit_code = robust(standalone_mode=False)
    except RobustRunError as error:
        click.echo(f"robust: {plain(str(error))}", err=True)
        exit_code = error.exit_code
    except click.exceptions.Abort:
        exit_code = 130
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        exit_code = 1
        _drop_the_rest()
        with suppress(OSError):  # the terminal may be the same file
            click.echo(f"robust: what is to be shown cannot be written: {error.strerror}", err=True)
    except click.ClickException as error:
        error.show()
        exit_code = error.exit_code
    collect_as_ever()
    sys.exit(exit_code or 0)


def _open_what_is_closed() -> None:
    """Give who has closed a standard stream (`>&-`) one that leads nowhere: Python has None there, and nobody asks for that."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the end


def _drop_the_rest() -> None:
    """Let nothing more be written to standard output: Python would try again when it exits, and end with 120 and a traceback."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


class _Robust(click.Group):
    """Imports a group of commands when it is asked for: the others start without it. Lists them by what they are for."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl([*EXAMPLES])
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _summary(self.get_command(context, name))) for name in names])
        click.Command.format_options(self, context, formatter)

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words and not words[0].startswith("-") and self.get_command(context, words[0]) is None:
            import difflib  # 8 ms, for a mistyped word only

            nearest = difflib.get_close_matches(words[0], self.list_commands(context), 1)
            hint = f"did you mean robust {nearest[0]}?" if nearest else "robust help lists them"
            raise UserError(f"there is no command {words[0]!r}; {hint}")
        return super().resolve_command(context, _of_roles(self, context, words))

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted((*super().list_commands(context), *LATE_GROUPS))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in LATE_GROUPS:
            return super().get_command(context, name)
        from importlib import import_module

        module, variable = LATE_GROUPS[name]
        group = getattr(import_module(module), variable)
        assert isinstance(group, click.Command)
        return group


#: What is given where a run is named, or another kind of job is meant.
_OF_ANOTHER = ("run", "runs", "url", "every", "startup", "startups", "what_if")


def _of_roles(robust: click.Group, context: click.Context, words: list[str]) -> list[str]:
    """Return what is meant where a command is given a job of several roles: it has no controller of its own. Raises UserError."""
    from robust_run.orchestrator.people import meant

    command = words[0] if words else ""
    if command not in meant.SAME and command not in meant.OF_MEMBERS:
        return words
    if context.resilient_parsing or {"-h", "--help"} & {*words}:  # a shell completes, or help is asked for
        return words
    if run := meant.named(words[1:], os.environ):
        return ["roles", *meant.instead(command, words[1:], run)]
    if meant.newest(words[1:], os.environ):
        found = robust.get_command(context, command)
        assert found is not None, "it is one of ours"
        params = found.make_context(command, words[1:], resilient_parsing=True).params
        names_a_run = not str(params.get("number") or "1").isdecimal()  # robust incident RUN
        if not names_a_run and not any(params.get(name) for name in _OF_ANOTHER):
            return meant.unnamed(command, words, os.environ)
    return words


@click.group(cls=_Robust, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.pass_context
def robust(context: click.Context) -> None:
    """Look after jobs of robust-run and what they need."""
    context.ensure_object(dict)["check_nodes"] = _check_nodes
    context.obj["versions_of_roles"] = _versions_of_roles
    context.obj["role_needs"] = _role_needs
    context.obj["other_runs"] = _other_runs


def _role_needs(path: str) -> tuple[str, tuple[RoleNeed, ...]]:
    """Read a file of roles, for `robust slurm submit`, which knows nothing of what is in it."""
    from robust_run.orchestrator.roles_file import load
    from robust_run.slurm.rules.role_needs import RoleNeed

    spec = load(path)
    return spec.name, tuple(
        RoleNeed(
            name=role.name,
            where=role.where,
            members=role.members,
            nodes=role.nodes,
            gpus=role.devices * role.nproc,
            cpus=role.cpus * role.nproc,
        )
        for role in spec.roles
    )


def _other_runs() -> OtherRuns:
    """Tell of jobs of several roles, for lists of runs, which know jobs of one world."""
    from robust_run.orchestrator.people.rows import RunsOfRoles

    return RunsOfRoles()


def _check_nodes(run: str, nodes: Sequence[str], wish: Wish, say: Callable[[str], None]) -> ChecksReport:
    """Reach the nodes of a job, for `robust check`, which knows nothing of jobs."""
    from robust_run.launcher.operator.reading.check_client import check_nodes

    return check_nodes(os.environ, run, nodes, wish, say)


def _versions_of_roles(run: str, log_dir: str, role: str) -> dict[str, Versions]:
    """Find the code of roles, for `robust update` and `robust code`, which know jobs of one world."""
    from robust_run.orchestrator.updates.asking import versions_of_roles

    return versions_of_roles(run, log_dir, role)


def _summary(command: click.Command | None) -> str:
    """Return the first sentence of what a command says of itself, however long."""
    text = " ".join((command.help or "").split()) if command is not None else ""
    return text.partition(". ")[0].rstrip(".")


@robust.command(name="help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_of(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or this."""
    shown, command = context.parent or context, robust
    for word in words:
        if not isinstance(command, click.Group):
            raise UserError(f"{shown.command_path} has no commands of its own: robust help {' '.join(words[:-1])}")
        _, found, _ = command.resolve_command(shown, [word])
        assert found is not None, "else it is said"
        shown, command = click.Context(found, info_name=word, parent=shown), found  # type: ignore[assignment]
    click.echo(command.get_help(shown))


@robust.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script that has SHELL complete robust and robust-run. bash: eval "$(robust completion bash)" in ~/.bashrc."""
    from robust_run.completion import SHELLS, script

    click.echo(script(next(each for each in SHELLS if each == shell), robust))


for _command in (*COMMANDS, *TRACE_COMMANDS):
    robust.add_command(_command)
