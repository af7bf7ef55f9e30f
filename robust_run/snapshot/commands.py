"""`robust env`: snapshots of dependencies. Bodies import what they need: `robust` must start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from robust_run.json_output import document
from robust_run.snapshot.commands_shared import loaded, opened, plan_of, unpacked_here
from robust_run.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from robust_run.snapshot.rules.types import SnapshotManifest

_MIB = 1 << 20
_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")
_store = click.option(
    "--store", "url", metavar="URL", help="Folder or URL of the snapshots. [ROBUST_SETUP_STORE, or the user's cache]"
)
_token = click.option(
    "--token-file", metavar="FILE", help="File with the token that signs snapshots; others are refused."
)
_cache = click.option("--cache", metavar="DIR", help="Where this node keeps images. [the user's cache]")


def _setup_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that make a key."""
    for option in (
        click.option(
            "--base-image", default="", metavar="DIGEST", help="Digest of the container image, as a part of the key."
        ),
        click.option(
            "--setup-env", "variables", multiple=True, metavar="NAME", help="Variable that is a part of the key, too."
        ),
        click.option("--setup-root", "roots", multiple=True, metavar="DIR", help="A folder to capture, too."),
        click.option("--setup-file", "files", multiple=True, metavar="FILE", help="A shell script to run."),
        click.option("--setup", "commands", multiple=True, metavar="CMD", help="A command to run; again for more."),
    ):
        command = option(command)
    return command


@click.group()
def env() -> None:
    """Snapshots of dependencies: build, restore, list, compare them."""


@env.command()
@_setup_options
@click.option("--explain", is_flag=True, help="Show every part of the key with its digest.")
@_as_json
def key(explain: bool, as_json: bool, **typed: Any) -> None:
    """Print the key of a set-up in this environment."""
    from robust_run.snapshot.rules import key as keys

    made = plan_of(typed).key
    _tell(made, keys.explain(made) if explain else [made.digest], as_json)


@env.command()
@_setup_options
@_store
@_token
@click.option("--refresh", is_flag=True, help="Build it anew even if it exists.")
@click.option("--allow-outside", is_flag=True, help="Allow changes outside the captured folders; only list them.")
@_as_json
def build(
    url: str | None, token_file: str | None, refresh: bool, allow_outside: bool, as_json: bool, **typed: Any
) -> None:
    """Build the snapshot of a set-up, or wait for who builds it. The environment itself stays as it is, where overlays work."""
    import time

    import msgspec

    from robust_run.clock import SystemClock
    from robust_run.snapshot import building, holding, shown
    from robust_run.snapshot.defaults import read_token
    from robust_run.snapshot.errors import SnapshotDamaged

    plan, store, token, clock = plan_of(typed), opened(url), read_token(token_file), SystemClock()
    setup = msgspec.structs.replace(plan.setup, on_outside="note" if allow_outside else "refuse")
    plan = msgspec.structs.replace(plan, setup=setup, replace=refresh)

    def show(line: bytes) -> None:
        click.echo(line, err=True, nl=False)

    def run(holder: holding.Holder) -> SnapshotManifest:
        return building.build(plan, store, holder, clock=clock, token=token, on_output=show)

    def obtain(*, refresh: bool) -> SnapshotManifest:
        return holding.obtain(
            store,
            plan.key.digest,
            run,
            clock=clock,
            sleep=time.sleep,
            token=token,
            refresh=refresh,
            on_wait=lambda what: click.echo(f"robust: waiting for another build: {plain(what)}", err=True),
        )

    try:
        found = obtain(refresh=refresh)
    except SnapshotDamaged as error:
        click.echo(f"robust: it is built anew: {plain(str(error))}", err=True)
        plan = msgspec.structs.replace(plan, replace=True)
        found = obtain(refresh=True)
    _tell(found, [shown.line(found)], as_json)


@env.command()
@click.argument("key")
@_store
@_token
@_cache
@click.option("--in-place", is_flag=True, help="Copy it into the environment it was captured from.")
def restore(key: str, url: str | None, token_file: str | None, cache: str | None, in_place: bool) -> None:
    """Fetch, verify and unpack a snapshot, and print the folder; with --in-place, copy it to where it belongs."""
    from robust_run.snapshot import catalog, platforms
    from robust_run.snapshot.rules import manifest

    store = opened(url)
    found = loaded(store, key, token_file)
    manifest.check_fits(found, platforms.here().platform)
    unpacked = unpacked_here(store, found, cache)
    catalog.note_use(store, found.key)
    if in_place:
        from robust_run.snapshot.restore import extract
        from robust_run.snapshot.restore import in_place as copying

        copying.copy_over(found, extract.items_of(unpacked, found), unpacked)
    _tell(found, [root.path for root in found.roots] if in_place else [unpacked])


@env.command("list")
@_store
@_token
@_as_json
def list_(url: str | None, token_file: str | None, as_json: bool) -> int:
    """List the snapshots of a store; exit code 1 if there is none."""
    from robust_run.snapshot import catalog, shown
    from robust_run.snapshot.defaults import read_token
    from robust_run.snapshot.errors import SnapshotRefused

    store, token = opened(url), read_token(token_file)
    found: list[SnapshotManifest] = []
    for name in catalog.keys(store):
        try:
            manifest = catalog.load(store, name, token)
        except SnapshotRefused as error:
            click.echo(f"robust: {plain(str(error))}", err=True)
            continue
        if manifest is not None:
            found.append(manifest)
    _tell(found, map(shown.line, sorted(found, key=lambda each: each.built_unix_s)), as_json, "snapshots")
    return 0 if found else 1


@env.command()
@click.argument("key")
@_store
@_token
@_as_json
def inspect(key: str, url: str | None, token_file: str | None, as_json: bool) -> None:
    """Say what a snapshot is made of."""
    from robust_run.snapshot import shown

    found = loaded(opened(url), key, token_file)
    _tell(found, shown.described(found), as_json)


@env.command()
@click.argument("a")
@click.argument("b")
@_store
@_token
@_as_json
def diff(a: str, b: str, url: str | None, token_file: str | None, as_json: bool) -> int:
    """Say in which ingredients and packages two snapshots differ; exit code 1 if they do."""
    from robust_run.snapshot import shown

    store = opened(url)
    found = shown.differences(loaded(store, a, token_file), loaded(store, b, token_file))
    _tell(
        found,
        (f"{each.name}: {each.here or '(none)'} -> {each.there or '(none)'}" for each in found),
        as_json,
        "differences",
    )
    return 1 if found else 0


@env.command()
@_store
@click.option(
    "--unused-days",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Remove those that were not used for so long.",
)
@click.option(
    "--keep-latest", type=click.IntRange(min=0), default=1, show_default=True, help="Remove them whatever their age."
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@_as_json
def prune(url: str | None, unused_days: float, keep_latest: int, dry_run: bool, as_json: bool) -> None:
    """Remove snapshots that were not used for a while, and what builds left that failed or were killed."""
    from robust_run.clock import SystemClock
    from robust_run.snapshot import catalog, leftovers
    from robust_run.snapshot.rules import expiry

    store = opened(url)
    plan = expiry.prune_plan(
        leftovers.stored(store), SystemClock().unix_s(), unused_s=unused_days * 86400.0, keep_latest=keep_latest
    )
    for removal in plan:
        if not dry_run:
            catalog.remove(store, removal.key)
        if not as_json:
            click.echo(f"{removal.key[:16]}  {removal.size_bytes / _MIB:.1f} MiB  {plain(removal.reason)}")
    _tell(plan, [], as_json)


@env.command()
@click.argument("key")
@_store
@_token
@_cache
@click.option("--restored", is_flag=True, help="The environment itself, where it is restored, instead of the image.")
def verify(key: str, url: str | None, token_file: str | None, cache: str | None, restored: bool) -> int:
    """Compare every file of a snapshot with its listing; exit code 1 if one differs."""
    from robust_run.snapshot.restore import extract
    from robust_run.snapshot.verify import check_tree

    store = opened(url)
    found = loaded(store, key, token_file)
    unpacked = unpacked_here(store, found, cache)
    items = extract.items_of(unpacked, found)
    tops = [root.path if restored else f"{unpacked}/r{root.folder}" for root in found.roots]
    problems = check_tree(tops, items, digests=1.0, exact=not restored)
    _tell(problems, problems or [f"{found.key[:16]}: all of {len(items)} entries are as they were built"])
    return 1 if problems else 0


def _tell(value: Any, lines: Iterable[str], as_json: bool = False, name: str = "") -> None:
    """Write what a command has found, for programs (see `document`) or for people."""
    for line in [document(value, name)] if as_json else map(plain, lines):
        click.echo(line)
