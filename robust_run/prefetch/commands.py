"""`robust image`: images that start before they are here. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, cast

import click

from robust_run.json_output import print_document
from robust_run.prefetch.commands_blocks import COMMANDS as BLOCKS
from robust_run.prefetch.commands_running import COMMANDS as RUNNING
from robust_run.prefetch.commands_shared import as_json_option, cache_folder, cache_option
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.prefetch.image.losses import Loss
    from robust_run.prefetch.inspecting import Inspected


@click.group()
def image() -> None:
    """Images of environments: build, look into, record, prefetch, verify them."""


@image.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="[IMAGE]", required=False)
@click.option("--compress", type=click.Choice(["zstd", "lz4"]), default="zstd", show_default=True)
@click.option("--mount-at", metavar="FOLDER", help="Folder where an environment (venv, conda) is to be mounted.")
@click.option("--from-record", "recorded", metavar="IMAGE", help="Put first what starts of this older image read.")
@click.option("--exclude", multiple=True, metavar="PATH", help="A path in SRC that is left out; again for each.")
@click.option("--tag", help="Which image of an OCI layout that has several.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads (default: the number of CPUs).")
@cache_option
@as_json_option
def build(  # noqa: PLR0913 - options of a command
    source: str,
    destination: str | None,
    *,
    compress: str,
    mount_at: str | None,
    recorded: str | None,
    exclude: tuple[str, ...],
    tag: str | None,
    threads: int | None,
    cache_root: str | None,
    as_json: bool,
) -> int:
    """Make IMAGE, a squashfs with its block map, of a folder or an OCI layout.

    SRC may be an image already, squashfs or SIF: then only its block map is made, beside it, and IMAGE is not given.
    """
    from robust_run.errors import UserError
    from robust_run.prefetch import belonging, blockmap
    from robust_run.prefetch.image.build import BuildOptions, Compression
    from robust_run.prefetch.image.build import build as make
    from robust_run.prefetch.image.identify import identify
    from robust_run.prefetch.image.losses import sentence
    from robust_run.prefetch.inspecting import hot_files_of
    from robust_run.store.progress import shown, size

    if mount_at is not None:
        mount_at = mount_at.rstrip("/")
        if not blockmap.is_folder_name(mount_at):
            raise UserError(
                f"--mount-at {mount_at[:80]!r}: give the folder where it belongs, an absolute path without '..'"
            )
        if reason := belonging.why_not(mount_at):
            raise UserError(f"--mount-at {mount_at}: {reason}; give a folder of its own, such as /opt/NAME")
    try:
        is_image = identify(source).squashfs is not None
    except OSError as error:
        raise UserError(f"{source}: {error.strerror}") from error
    if is_image:
        return _describe(source, destination, mount_at, as_json)
    if destination is None:
        raise UserError(f"{source} is to be packed: name the IMAGE that is to be made of it")
    hot_files = hot_files_of(recorded, cache_folder(cache_root)) if recorded else []
    options = BuildOptions(
        compression=cast("Compression", compress),
        mount_at=mount_at,
        hot_files=hot_files,
        exclude=exclude,
        threads=threads,
        tag=tag,
    )
    lost: list[Loss] = []
    with shown(f"building {destination}", None) as progress:
        made = make(source, destination, options, progress=progress, lost=lost.extend)
    if as_json:
        print_document({"image": destination, "size_bytes": made.size_bytes, "sha256": made.sha256, "lost": lost})
        return 0
    first = f", {len(hot_files)} recorded files first" if hot_files else ""
    click.echo(f"robust: {destination}: {size(made.size_bytes)}, {made.blocks} blocks{first}")
    if lost:
        click.echo(f"robust: {destination}: not kept: {plain(sentence(lost))}", err=True)
    return 0


def _describe(source: str, destination: str | None, mount_at: str | None, as_json: bool) -> int:
    """Make the block map of an image. What an older one said of its place is kept."""
    import msgspec

    from robust_run.errors import UserError
    from robust_run.prefetch import blockmap
    from robust_run.prefetch.errors import BlockMapRefused
    from robust_run.prefetch.image.build import describe
    from robust_run.store.errors import StoreError
    from robust_run.store.opening import open_store
    from robust_run.store.progress import shown, size

    if destination is not None:
        raise UserError(f"{source} is an image already: only its block map is made, beside it; leave {destination} out")
    with shown(f"reading {source}", os.path.getsize(source)) as progress:
        made = describe(source, progress=progress)
    place = blockmap.sidecar(os.path.abspath(source))
    folder, name = open_store(os.path.dirname(place)), os.path.basename(place)
    with contextlib.suppress(StoreError, BlockMapRefused):
        mount_at = mount_at or blockmap.decode(folder.read_all(name, blockmap.LARGEST_MAP_BYTES)).mount_at
    made = blockmap.checked(msgspec.structs.replace(made, mount_at=mount_at), place)
    folder.write_all(name, blockmap.encode(made))
    if as_json:
        print_document({"image": source, "size_bytes": made.size_bytes, "sha256": made.sha256})
    else:
        click.echo(f"robust: {place}: {made.blocks} blocks, {size(made.size_bytes)}")
    return 0


@image.command()
@click.argument("source", metavar="IMAGE")
@cache_option
@as_json_option
def inspect(source: str, cache_root: str | None, as_json: bool) -> int:
    """Show what an image is, what of it is in the cache, and its hot lists."""
    from robust_run.prefetch.inspecting import inspect as look

    found = look(source, cache_folder(cache_root))
    if as_json:
        print_document(found)
    else:
        _show(found)
    return 0


def _show(found: Inspected) -> None:
    from robust_run.store.progress import size

    kind = f"{found.kind}, " if found.kind else ""
    compression = f" ({found.compression})" if found.compression else ""
    click.echo(
        f"{found.image}: {kind}{size(found.size_bytes)}{compression}, {found.blocks} blocks of {size(found.block_bytes)}"
    )
    click.echo(f"identity {found.identity}")
    if found.mount_at:
        click.echo(f"belongs at {plain(found.mount_at)}")
    for loss in found.lost:
        click.echo(f"not kept when it was built: {plain(loss.sentence())}")
    click.echo(f"in the cache: {found.cached_blocks} of {found.blocks} blocks")
    for each in found.lists:
        times = f"{each.launches} launch{'es' if each.launches > 1 else ''}"
        click.echo(
            f"hot list {each.launch[:12]} {each.machine}: {size(each.hot_bytes)} in {each.ranges} ranges, {times}"
        )
    if not found.lists:
        click.echo("no hot list: a first launch, or robust image record, makes one")
    for problem in found.problems:
        click.echo(f"robust: {plain(problem)}", err=True)


for _command in (*BLOCKS, *RUNNING):
    image.add_command(_command)
