"""`robust ckpt mount | unmount`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from robust_run.ckpt_io.commands.shared import also_option, as_json_option, lines
from robust_run.json_output import print_document

if TYPE_CHECKING:
    from robust_run.ckpt_io.mount.types import MountOptions


@click.command()
@click.argument("url", default="", metavar="[URL]")
@click.argument("point", default="", metavar="[FOLDER]")
@click.option("--writable", is_flag=True, help="Take new files: each is a striped checkpoint once it is closed.")
@click.option("--direct-io", is_flag=True, help="Bypass the page cache: twice as fast for files that are read once.")
@click.option("--allow-other", is_flag=True, help="Let other users of this machine read it, too.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground; unmount at the end.")
@click.option("--cache", default=256, show_default=True, type=click.IntRange(min=64), help="MiB for units in memory.")
@click.option("--codec", type=click.Choice(["none", "lz4", "zstd_shuffle"]), default="none", help="For new files.")
@click.option("--log", default="", metavar="FILE", help="File in which errors of readers are explained.")
@click.option("--list", "listed", is_flag=True, help="List the mounts of this machine instead.")
@also_option
@as_json_option
def mount(  # noqa: PLR0913 - options of a command
    url: str,
    point: str,
    *,
    writable: bool,
    direct_io: bool,
    allow_other: bool,
    foreground: bool,
    cache: int,
    codec: str,
    log: str,
    listed: bool,
    also: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show a checkpoint, or a folder of them, as plain files in FOLDER, with <name>.safetensors of those that have tensors."""
    from typing import cast

    from robust_run.ckpt_io.address import parse
    from robust_run.ckpt_io.mount.types import MountOptions
    from robust_run.ckpt_io.rules.types import Codec
    from robust_run.errors import UserError

    if listed:
        return _list(as_json)
    if not url or not point:
        raise UserError("robust ckpt mount URL FOLDER: name what is to be seen, and where; --list lists the mounts")
    where = parse(url, also)
    options = MountOptions(
        url=where.url,
        point=os.path.realpath(point),
        also=where.also,
        writable=writable,
        direct_io=direct_io,
        allow_other=allow_other,
        cache_bytes=cache << 20,
        codec=cast("Codec", codec),
        lifeline=foreground,
    )
    return _mount(options, foreground, log or _log_path(options.point), as_json)


def _mount(options: MountOptions, foreground: bool, log: str, as_json: bool) -> int:
    from robust_run.ckpt_io.mount.manage import mount as begin
    from robust_run.errors import PlatformError

    def say(text: str) -> None:
        click.echo(f"robust: {text}", err=True)

    if foreground:
        with begin(options, say, log=sys.stderr.buffer) as mounted:
            for number in (
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
            ):  # before it says so, or who reads that is too early
                signal.signal(number, lambda *_: mounted.process.terminate())
            _tell(options, mounted.process.pid, "", as_json)
            return mounted.process.wait()
    try:
        os.makedirs(os.path.dirname(os.path.abspath(log)), exist_ok=True)
        with open(log, "wb") as file:
            made = begin(options, say, log=file)
    except OSError as error:
        raise PlatformError(f"--log {log}: {error.strerror}") from error
    _tell(options, made.process.pid, log, as_json)
    return 0


def _tell(options: MountOptions, pid: int, log: str, as_json: bool) -> None:
    if as_json:
        print_document({"point": options.point, "url": options.url, "pid": pid, "log": log})
    else:
        kind = "for reading and new files" if options.writable else "for reading"
        told = f"; errors are explained in {log}" if log else ""
        click.echo(f"robust: {options.url} is mounted on {options.point} {kind} (process {pid}){told}")


def _list(as_json: bool) -> int:
    from robust_run.ckpt_io.mount.mounts import ours, state_of

    found = [(mount, state_of(mount.point)) for mount in ours()]
    if as_json:
        print_document(
            [{"point": mount.point, "url": mount.source, "state": state} for mount, state in found], "mounts"
        )
    elif not found:
        click.echo("robust: nothing is mounted", err=True)
    else:
        lines(f"{mount.point}  {mount.source}  {state}" for mount, state in found)
    return 0 if found else 1


@click.command()
@click.argument("point", default="", metavar="[FOLDER]")
@click.option("--lazy", is_flag=True, help="Unmount even while it is in use: it goes when the last file is closed.")
@click.option("--stale", is_flag=True, help="All mounts whose process was killed.")
@as_json_option
def unmount(point: str, lazy: bool, stale: bool, as_json: bool) -> int:
    """Take a mount away. What was written and closed is saved; what is still open for writing is not."""
    from robust_run.ckpt_io.mount.manage import stop
    from robust_run.ckpt_io.mount.mounts import clear_stale
    from robust_run.errors import UserError

    if not point and not stale:
        raise UserError("robust ckpt unmount FOLDER: name a mount, or give --stale")
    gone = [each.point for each in clear_stale()] if stale else []
    if point:
        stop(point, lazily=lazy)
        gone.append(os.path.abspath(point))
    if as_json:
        print_document(gone, "unmounted")
    else:
        lines(f"robust: {each} is unmounted" for each in gone)
    return 0


def _log_path(point: str) -> str:
    """Return where the process of a mount explains errors, unless told."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "robust", "mounts", point.strip("/").replace("/", "-")[-200:] + ".log")


COMMANDS = (mount, unmount)
