"""`robust slurm`: submit a job that heals itself, and check a site. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

from typing import Any

import click

from robust_run.json_output import print_document
from robust_run.terminal import plain

_COMMAND = "robust-run.command"


class _UpToDashes(click.Command):
    """Leaves what follows the first `--` alone: it is a command line of its own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        context.meta[_COMMAND] = tuple(args[place + 1 :])
        return super().parse_args(context, args[:place])


@click.group()
def slurm() -> None:
    """Submit jobs to Slurm, and check what a site's Slurm is like."""


@slurm.command(
    cls=_UpToDashes,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    options_metavar="[--dry-run] [--srun=OPTION]... [SBATCH OPTIONS]",
)
@click.option("--dry-run", is_flag=True, help="Print the batch script, and submit nothing.")
@click.option(
    "--srun", "step_options", multiple=True, metavar="OPTION", help="One more option for srun: --srun=--label."
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="-- robust-run [OPTIONS] SCRIPT [ARGUMENTS]")
@click.pass_context
def submit(context: click.Context, dry_run: bool, step_options: tuple[str, ...], options: tuple[str, ...]) -> int:
    """Write a batch script that outlives the loss of nodes, and submit it.

    \b
        robust slurm submit -N 4 -c 32 --gpus-per-node=8 -t 12:00:00 -- robust-run --nproc-per-node 8 train.py

    Options of sbatch come first; `:` between them begins another component, for --roles. The script is kept beside the job's log.
    """
    import os

    from robust_run.slurm.rules.script import make_script
    from robust_run.slurm.submit import plan
    from robust_run.slurm.submit import submit as put_into_queue
    from robust_run.slurm.tools import SystemTools

    def standbys(nodes: int, log_dir: str) -> tuple[int, str]:
        from robust_run.launcher.agent.workers.this_machine import system_world
        from robust_run.launcher.start.options.fleet_standby import standbys_for

        return standbys_for(nodes, log_dir, system_world())

    roles = (context.obj or {}).get("role_needs")
    wanted = plan(options, step_options, context.meta[_COMMAND], os.environ, os.getcwd(), standbys, roles)
    script = make_script(wanted)
    for note in (wanted.standby_why, *script.notes) if wanted.standby_why else script.notes:
        click.echo(f"robust: {plain(note)}", err=True)
    if dry_run:
        click.echo(script.text, nl=False)
        return 0
    submitted = put_into_queue(wanted, script, os.environ, SystemTools())
    click.echo(f"submitted job {submitted.job}\n  script  {submitted.script}\n  output  {submitted.log}")
    return 0


@slurm.command()
@click.option("--nodes", type=click.IntRange(1, 4096), metavar="N", help="Run a short step on N nodes, too.")
@click.option("--srun", "step_options", multiple=True, metavar="OPTION", help="For that step: --srun=--partition=gpu.")
@click.option("--folder", metavar="DIR", help="Folder of the runs, shared by all nodes (default: the working folder).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(nodes: int | None, **typed: Any) -> int:
    """Check what this site's Slurm does to jobs whose nodes fail, a line each; exit code 1 if they would not work."""
    import os

    from robust_run.slurm.doctor import examine
    from robust_run.slurm.tools import SystemTools

    def tell(findings: list[Any]) -> None:
        for finding in () if typed["as_json"] else findings:
            click.echo(plain(str(finding)))

    found = examine(SystemTools(), os.environ)
    tell(found)
    if nodes is not None and SystemTools().find("srun"):
        more = _nodes(nodes, typed["step_options"], os.path.abspath(typed["folder"] or "."))
        tell(more)
        found += more
    if typed["as_json"]:
        print_document(found, "findings")
    return int(any(finding.kind in ("bad", "no answer") for finding in found))


def _nodes(nodes: int, step_options: tuple[str, ...], folder: str) -> list[Any]:
    import os
    import signal
    import tempfile

    from robust_run.errors import UserError
    from robust_run.slurm.doctor import START_S, examine_nodes, too_many
    from robust_run.slurm.tools import SystemTools

    def end(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)  # what it has begun is taken back, however impatient somebody is
        raise SystemExit(128 + number)

    if refused := too_many(SystemTools(), os.environ, nodes):
        return [refused]
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    click.echo(f"waiting for {nodes} nodes, {START_S:.0f} s at most", err=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".robust-doctor-", dir=folder) as shared:
            return examine_nodes(SystemTools(), os.environ, nodes, step_options, shared)
    except OSError as error:
        raise UserError(
            f"--folder {folder!r}: {error.strerror}; choose one that you can write and all nodes share"
        ) from None
