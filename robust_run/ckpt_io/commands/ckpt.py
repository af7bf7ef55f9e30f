"""`robust ckpt`: checkpoints. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from robust_run.ckpt_io.commands.copying import COMMANDS as COPYING
from robust_run.ckpt_io.commands.mounting import COMMANDS as MOUNTING
from robust_run.ckpt_io.commands.shared import also_option, as_json_option, check_followed, lines, say
from robust_run.clock import seconds_of
from robust_run.json_output import print_document

if TYPE_CHECKING:
    from robust_run.ckpt_io.catalog import CheckpointRemoval, RootEntry


@click.group()
def ckpt() -> None:
    """Checkpoints: list, verify, restore, convert, mount them."""


@ckpt.command("list")
@click.argument("root")
@also_option
@as_json_option
def list_(root: str, also: tuple[str, ...], as_json: bool) -> int:
    """List what lies in a folder of checkpoints; exit code 1 if there is none."""
    from robust_run.ckpt_io.catalog import list_checkpoints

    found = list_checkpoints(root, also)
    if as_json:
        print_document(found, "checkpoints")
    elif not found:
        say(f"robust: no checkpoint in {root}", err=True)
    else:
        lines(_found_line(each) for each in found)
    return 0 if found else 1


def _found_line(found: RootEntry) -> str:
    import time

    from robust_run.store.progress import size

    if found.state != "valid":
        return f"{found.name}  {found.state}: {found.reason}"
    step = f"step {found.step}" if found.step is not None else "no step"
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created_s))
    left = f"  {len(found.leftovers)} leftovers of other saves" if found.leftovers else ""
    link = "  (link)" if found.is_link else ""
    return f"{found.name}  {step}  {size(found.size_bytes or 0)}  {saved}{left}{link}"


@ckpt.command()
@click.argument("root")
@also_option
@as_json_option
def latest(root: str, also: tuple[str, ...], as_json: bool) -> int:
    """Print the path of the newest valid checkpoint in a folder; exit code 1 if there is none.

    Valid: its manifest is, and all parts are there, in full length. What is in them is what `verify` reads. A job with
    --ckpt-dir on this machine starts from the same one.
    """
    from robust_run.ckpt_io.catalog import latest as newest

    found = newest(root, also)
    if as_json:
        print_document(found, "checkpoint")
    elif found is None:
        say(f"robust: no valid checkpoint in {root}", err=True)
    elif sys.stdout.isatty():
        say(found.url)
    else:
        click.echo(found.url)  # bit by bit, for scripts
    return 0 if found is not None else 1


@ckpt.command()
@click.argument("root")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="How many of the newest to keep.",
)
@click.option(
    "--keep-every", type=click.IntRange(min=1), metavar="K", help="Keep also those whose step is a multiple of K."
)
@click.option(
    "--grace",
    default="1d",
    show_default=True,
    metavar="TIME",
    help="Age at which leftovers of unfinished saves are removed: 90s, 30m, 8h, 2d.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@also_option
@as_json_option
def prune(
    root: str, keep: int, keep_every: int | None, grace: str, dry_run: bool, also: tuple[str, ...], as_json: bool
) -> int:
    """Remove old checkpoints and leftovers of saves that died. The newest valid one always stays.

    What is damaged stays, too, and does not count, nor do symbolic links: nothing behind them is removed.
    """
    from robust_run.ckpt_io.catalog import prune as remove

    grace_s = _seconds(grace)
    removed = remove(root, also=also, keep=keep, keep_every=keep_every, grace_s=grace_s, dry_run=dry_run)
    if as_json:
        print_document(removed, "removed")
        return 0
    lines(_removal_line(each, dry_run) for each in removed)
    if not removed:
        say(f"robust: nothing to remove in {root}")
    return 0


def _removal_line(removal: CheckpointRemoval, dry_run: bool) -> str:
    path = removal.leftover.path if removal.leftover is not None else ""
    what = f"{removal.name}/{path}" if path else removal.name
    return f"robust: {'would remove' if dry_run else 'removed'} {what}: {removal.reason}"


@ckpt.command()
@click.argument("checkpoint")
@also_option
@as_json_option
def verify(checkpoint: str, also: tuple[str, ...], as_json: bool) -> int:
    """Read all of a checkpoint and hold it against its digests; exit code 1 if anything is damaged."""
    from robust_run.ckpt_io.reading import open_checkpoint
    from robust_run.ckpt_io.rules.manifest import size_bytes
    from robust_run.store.progress import shown, size

    with open_checkpoint(checkpoint, also=also) as opened:
        check_followed(checkpoint, also, opened.manifest)
        total = size_bytes(opened.manifest)
        with shown("verifying", total) as progress:
            damaged = opened.check(progress)
    if as_json:
        print_document({"url": opened.url, "size_bytes": total, "damaged": [_fault(fault) for fault in damaged]})
    elif damaged:
        lines(f"robust: {fault}" for fault in damaged)
    else:
        say(f"robust: {opened.url} is whole: {size(total)} verified")
    return 1 if damaged else 0


@ckpt.command()
@click.argument("checkpoint")
@click.option("--from", "source", required=True, metavar="CHECKPOINT", help="A second copy of the same content.")
@also_option
@click.option("--from-also", multiple=True, metavar="ROOT", help="Root of a further target of the second copy.")
@as_json_option
def repair(checkpoint: str, source: str, also: tuple[str, ...], from_also: tuple[str, ...], as_json: bool) -> int:
    """Mend a checkpoint from a second copy; its digests decide what is good. Exit code 1 if something is left."""
    from robust_run.ckpt_io.repair import repair as mend

    with _counting(checkpoint, also) as progress:
        done = mend(checkpoint, source, also=also, from_also=from_also, progress=progress)
    if as_json:
        units = {"repaired": [_fault(fault) for fault in done.units], "left": [_fault(fault) for fault in done.left]}
        print_document({**units, "manifests": done.manifests})
    else:
        lines(f"robust: still {fault}" for fault in done.left)
        click.echo(
            f"robust: {len(done.units)} units and {len(done.manifests)} manifests repaired, {len(done.left)} left"
        )
    return 1 if done.left else 0


def _counting(checkpoint: str, also: tuple[str, ...]) -> Any:
    from robust_run.ckpt_io.errors import CheckpointError
    from robust_run.ckpt_io.reading import open_checkpoint
    from robust_run.ckpt_io.rules.manifest import size_bytes
    from robust_run.store.progress import shown

    try:
        with open_checkpoint(checkpoint, also=also) as opened:
            return shown("checking", size_bytes(opened.manifest))
    except CheckpointError:
        return shown("checking", 0)


def _fault(fault: Any) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in ("file", "unit", "target", "part", "reason")}


def _seconds(text: str) -> float:
    seconds = seconds_of(text)
    if not 0 <= seconds < 1e9:
        raise click.BadParameter(f"--grace {text!r} is no time; write 90s, 30m, 8h or 2d")
    return seconds


for _command in (*COPYING, *MOUNTING):
    ckpt.add_command(_command)
