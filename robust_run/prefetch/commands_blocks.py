"""`robust image prefetch | verify | stats`: blocks that are here, and that should be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.prefetch.commands_shared import as_json_option, cache_folder, cache_option
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.prefetch.rules.types import Status


@click.command()
@click.argument("image")
@click.option("--all", "everything", is_flag=True, help="Fetch all of it, not only what recorded starts read.")
@click.option(
    "--width", type=click.IntRange(1, 256), default=32, show_default=True, metavar="N", help="Requests at once."
)
@cache_option
@as_json_option
def prefetch(image: str, everything: bool, width: int, cache_root: str | None, as_json: bool) -> int:
    """Bring an image's hot blocks to this node now, and verify those that are here; exit code 1 if some did not come."""
    from robust_run.errors import UserError
    from robust_run.prefetch.bringing import bring, hot_runs
    from robust_run.prefetch.maps import fetch_map
    from robust_run.prefetch.rules.types import BlockRun
    from robust_run.store.progress import shown, size
    from robust_run.store.types import StoreOptions

    root = cache_folder(cache_root)
    block_map, _problems = fetch_map(image, root, StoreOptions())
    runs = [BlockRun(0, block_map.blocks)] if everything else hot_runs(image, root, block_map)
    if not runs:
        raise UserError(f"{image}: no start of it was recorded, so nothing is known to be hot; --all brings all of it")
    total = sum(block_map.block_size_bytes(block) for run in runs for block in range(run.start, run.start + run.count))
    with shown(f"prefetching {os.path.basename(image)}", total) as progress:
        done = bring(image, block_map, root, runs, width=width, progress=progress)
    if as_json:
        print_document(done)
        return 1 if done.missing else 0
    for problem in done.problems:
        click.echo(f"robust: {plain(problem)}", err=True)
    left = f", {done.missing} blocks did not come" if done.missing else ""
    if done.damaged:
        blocks = "1 block" if done.damaged == 1 else f"{done.damaged} blocks"
        click.echo(f"robust: {blocks} in the cache {root} did not match their digests; fetched again", err=True)
    click.echo(
        f"robust: {size(done.fetched_bytes)} fetched in {done.took_s:.1f} s, {size(done.kept_bytes)} were here{left}"
    )
    return 1 if done.missing else 0


@click.command()
@click.argument("image")
@click.option("--cached", is_flag=True, help="Verify the cache of this node, not the image itself.")
@cache_option
@as_json_option
def verify(image: str, cached: bool, cache_root: str | None, as_json: bool) -> int:
    """Read all of an image and hold it against its block map; exit code 1 if a block is wrong.

    Wrong blocks in the cache are forgotten, and fetched again when they are needed.
    """
    from robust_run.prefetch.bringing import wrong_blocks
    from robust_run.prefetch.cache import Cache
    from robust_run.prefetch.maps import fetch_map
    from robust_run.store.progress import shown
    from robust_run.store.types import StoreOptions

    root = cache_folder(cache_root)
    block_map, _problems = fetch_map(image, root, StoreOptions())
    if cached:
        cache = Cache(root, block_map)
        count = cache.present()
        wrong = cache.verify()
        cache.close()
    else:
        count = block_map.blocks
        with shown(f"verifying {os.path.basename(image)}", block_map.size_bytes) as progress:
            wrong = wrong_blocks(image, block_map, progress=progress)
    if as_json:
        print_document({"image": image, "blocks": count, "wrong": wrong})
    elif wrong:
        some = ", ".join(map(str, wrong[:10])) + (", ..." if len(wrong) > 10 else "")
        click.echo(f"robust: {image}: {len(wrong)} of {count} blocks are wrong: {some}")
    else:
        click.echo(f"robust: {image}: {count} blocks are right of {block_map.blocks}")
    return 1 if wrong else 0


@click.command()
@cache_option
@click.option(
    "--prune",
    "keep_gb",
    type=click.FloatRange(min=0),
    metavar="GB",
    help="Keep so much of the newest; remove the rest.",
)
@as_json_option
def stats(cache_root: str | None, keep_gb: float | None, as_json: bool) -> int:
    """Show the block servers of this node, and the images in its cache."""
    from robust_run.prefetch import pruning
    from robust_run.prefetch.bringing import servers
    from robust_run.store.progress import size

    root = cache_folder(cache_root)
    removed = pruning.prune(root, int(keep_gb * 1e9)) if keep_gb is not None else []
    running, images = servers(root), pruning.cached_images(root)
    if as_json:
        print_document({"servers": running, "images": images, "removed": removed})
        return 0
    for status in running:
        click.echo(plain(_line(status)))
    for each in images:
        click.echo(f"cached image {each.identity[:12]}: {size(each.stored_bytes)}")
    for each in removed:
        click.echo(f"robust: removed {each.identity[:12]}: {size(each.stored_bytes)}")
    if not running and not images and not removed:
        click.echo(f"robust: no image in {root}")
    return 0


def _line(status: Status) -> str:
    share = 100 * status.present / status.blocks if status.blocks else 100
    fetched = ", ".join(
        f"{each.good_bytes / 1e6:.0f} MB from {each.name}" for each in status.sources if each.good_bytes
    )
    return (
        f"block server {status.pid}: image {status.image[:12]}, {share:.0f} % here, {fetched or 'nothing fetched'}, "
        f"{status.waited} of {status.reads} reads waited {status.waited_s:.1f} s, {status.failed} failed"
        + (f", {status.repaired} damaged in the cache and fetched again" if status.repaired else "")
    )


COMMANDS = (prefetch, verify, stats)
