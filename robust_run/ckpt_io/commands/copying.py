"""`robust ckpt restore | convert | inspect`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from robust_run.ckpt_io.commands.shared import also_option, as_json_option, lines, say
from robust_run.json_output import print_document

if TYPE_CHECKING:
    from robust_run.ckpt_io.copying.convert import Converted
    from robust_run.ckpt_io.copying.export import LeftOut
    from robust_run.ckpt_io.copying.sources import PlainSource
    from robust_run.ckpt_io.reading import Checkpoint

_CODECS = ("none", "lz4", "zstd_shuffle")
_FORMATS = ("rrck", "safetensors", "dcp", "files")
#: Lines that are told of one kind; the rest is counted. With --json, all are there.
_TOLD_MOST = 20
_follow_links = click.option(
    "--follow-links", is_flag=True, help="Follow symbolic links that lead out of SRC (default: they are refused)."
)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@also_option
@click.option("--from-also", multiple=True, metavar="ROOT", help="Root of a further target of SRC.")
@click.option(
    "--verify-only",
    is_flag=True,
    help="Copy nothing: compare DST with SRC; exit code 1 if anything is missing or differs.",
)
@_follow_links
@as_json_option
def restore(
    source: str,
    destination: str,
    *,
    also: tuple[str, ...],
    from_also: tuple[str, ...],
    verify_only: bool,
    follow_links: bool,
    as_json: bool,
) -> int:
    """Bring a checkpoint to this machine, from a path, HDFS, HTTP or object store.

    It may be one of ours, a DCP folder, a file, or a folder, which is taken with everything below it. One that was cut short
    goes on where it was: what is there is verified and not fetched again. A checkpoint of ours is striped over DST and the
    --also roots; everything else is copied as it is.
    """
    import time

    from robust_run.ckpt_io.address import parse
    from robust_run.ckpt_io.copying.restore import restore as copy
    from robust_run.ckpt_io.copying.sources import open_source
    from robust_run.store.progress import shown, size

    opened = open_source(source, from_also, links="follow" if follow_links else "refuse")
    began_s = time.monotonic()
    try:
        with shown("comparing" if verify_only else "restoring", _size_of(opened)) as progress:
            done = copy(opened, parse(destination, also), verify_only=verify_only, progress=progress)
    finally:
        opened.close()
    took_s = time.monotonic() - began_s
    count = "" if done.kind == "rrck" else f"{done.files} file{'' if done.files == 1 else 's'}, "
    if as_json:
        print_document(done)
        return 1 if done.wrong else 0
    _tell(done.notes, err=True)
    _tell([f"{path} is not in {done.source}" for path in done.extra], err=True)
    if done.wrong:
        _tell(done.wrong)
    elif verify_only:
        say(f"robust: {done.destination} is {done.source}: {count}{size(done.size_bytes)} compared")
    else:
        kept = f", {size(done.kept_bytes)} were there" if done.kept_bytes else ""
        rate = f"{size(done.fetched_bytes / max(took_s, 1e-9))}/s"
        say(f"robust: {done.destination}: {count}{size(done.fetched_bytes)} restored in {took_s:.1f} s ({rate}){kept}")
    return 1 if done.wrong else 0


def _tell(told: Sequence[str], *, err: bool = False) -> None:
    for line in told[:_TOLD_MOST]:
        say(f"robust: {line}", err=err)
    if len(told) > _TOLD_MOST:
        say(f"robust: and {len(told) - _TOLD_MOST} more such lines; --json has all of them", err=err)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--to", "to", type=click.Choice(_FORMATS), help="rrck, our own, unless DST ends with .safetensors.")
@click.option("--codec", type=click.Choice(_CODECS), default="none", show_default=True, help="For rrck.")
@click.option(
    "--unit", default=8, show_default=True, type=click.Choice([1, 2, 4, 8, 16, 32, 64]), help="MiB, for rrck."
)
@click.option("--step", type=click.IntRange(min=0), help="Training step to record, where SRC has none.")
@_follow_links
@also_option
@click.option("--from-also", multiple=True, metavar="ROOT", help="Root of a further target of SRC.")
@as_json_option
def convert(  # noqa: PLR0913 - options of a command
    source: str,
    destination: str,
    *,
    to: str | None,
    codec: str,
    unit: int,
    step: int | None,
    follow_links: bool,
    also: tuple[str, ...],
    from_also: tuple[str, ...],
    as_json: bool,
) -> int:
    """Convert a checkpoint: to our format from any; from ours to safetensors, a DCP folder, or the files it holds.

    Files (.pt, .safetensors, folders with all that lies below them) are taken over bit by bit; one that is cut off is an
    error. No pickle is run but weights.
    """
    from robust_run.ckpt_io.copying.sources import open_source
    from robust_run.store.progress import shown, size

    to = to or ("safetensors" if destination.endswith(".safetensors") else "rrck")
    opened = open_source(source, from_also, links="follow" if follow_links else "refuse")
    try:
        with shown("converting", _size_of(opened)) as progress:  # over before the result is told
            if to == "rrck":
                saved = _to_ours(opened, destination, (codec, unit, step, also), progress)
            else:
                written, left_out = _to_theirs(opened, destination, to, progress)
    finally:
        opened.close()
    if to == "rrck":
        _tell_saved(saved, as_json)
    elif as_json:
        print_document({"destination": destination, "to": to, "size_bytes": written, "left_out": left_out})
    else:
        _tell([each.said for each in left_out], err=True)
        say(f"robust: {destination}: {size(written)} written")
    return 0


def _to_ours(
    opened: Checkpoint | PlainSource,
    destination: str,
    wishes: tuple[str, int, int | None, tuple[str, ...]],
    progress: Callable[[int], None],
) -> Converted:
    from typing import cast

    from robust_run.ckpt_io.address import parse
    from robust_run.ckpt_io.copying.convert import convert as save
    from robust_run.ckpt_io.copying.taking import Wishes
    from robust_run.ckpt_io.rules.types import Codec

    codec, unit_mib, step, also = wishes
    wish = Wishes(codec=cast("Codec", codec), unit_bytes=unit_mib << 20, step=step)
    return save(opened, parse(destination, also), wish, progress)


def _tell_saved(done: Converted, as_json: bool) -> None:
    from robust_run.store.progress import size

    if as_json:
        print_document(done)
        return
    _tell(done.notes, err=True)
    counts = (("file", done.files), ("tensor", done.tensors), ("object", done.objects))
    what = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts)
    say(f"robust: {done.destination}: {size(done.size_bytes)} saved ({what})")


def _to_theirs(
    opened: Checkpoint | PlainSource, destination: str, to: str, progress: Callable[[int], None]
) -> tuple[int, list[LeftOut]]:
    from robust_run.ckpt_io.address import parse
    from robust_run.ckpt_io.copying import export
    from robust_run.ckpt_io.reading import Checkpoint
    from robust_run.errors import UserError

    if not isinstance(opened, Checkpoint):
        raise UserError(f"--to {to}: only checkpoints of ours are converted to that; convert SRC to rrck first")
    write = {"safetensors": export.to_safetensors, "dcp": export.to_dcp, "files": export.to_files}[to]
    return write(opened, parse(destination).url, progress), export.left_out(opened.manifest, to)


@click.command()
@click.argument("source", metavar="SRC")
@also_option
@as_json_option
def inspect(source: str, also: tuple[str, ...], as_json: bool) -> int:
    """Show what is in a checkpoint of any kind: tensors, shapes, types, sizes, step; exit code 1 if a file is damaged.

    Nothing of it is run.
    """
    from robust_run.ckpt_io.copying.inspect import contents_lines, contents_of

    contents = contents_of(os.fspath(source), also)
    if as_json:
        print_document(contents)
    else:
        lines(contents_lines(contents))
    return 1 if contents.damaged else 0


def _size_of(opened: Checkpoint | PlainSource) -> int:
    from robust_run.ckpt_io.reading import Checkpoint
    from robust_run.ckpt_io.rules.manifest import size_bytes

    if isinstance(opened, Checkpoint):
        return size_bytes(opened.manifest)
    return sum(file.size_bytes for file in opened.files)


COMMANDS = (restore, convert, inspect)
