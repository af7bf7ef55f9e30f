"""What the commands of `robust env` share: the plan, the store and the snapshot that were named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robust_run.snapshot.building import BuildPlan
    from robust_run.snapshot.rules.types import SnapshotManifest
    from robust_run.store.types import Store


def plan_of(typed: dict[str, Any]) -> BuildPlan:
    """Return what the options of a set-up ask for. Raises UserError."""
    import os

    from robust_run.snapshot.planning import commands_of, prepare

    return prepare(
        commands_of(typed["commands"], typed["files"]),
        environment=os.environ,
        cwd=os.getcwd(),
        more_roots=typed["roots"],
        variables=typed["variables"],
        base_image=typed["base_image"],
    )


def opened(url: str | None) -> Store:
    """Return the store of snapshots; None: the user's own. Raises UserError."""
    from robust_run.store.opening import open_store

    if not url:
        import os

        from robust_run.snapshot.defaults import default_store

        url = default_store(os.environ)
    return open_store(url)


def unpacked_here(store: Store, found: SnapshotManifest, cache: str | None) -> str:
    """Bring an image to this node, and return the folder that it is unpacked in."""
    import os

    from robust_run.snapshot import fetch
    from robust_run.snapshot.defaults import cache_folder
    from robust_run.snapshot.restore import extract

    folder = cache or cache_folder(os.environ)
    return extract.extract(found, fetch.fetch(store, found, folder), folder)


def loaded(store: Store, text: str, token_file: str | None) -> SnapshotManifest:
    """Return the manifest that the beginning of a key names. Raises UserError where there is none."""
    from robust_run.errors import UserError
    from robust_run.snapshot import catalog
    from robust_run.snapshot.defaults import read_token

    name = catalog.resolve(store, text)
    found = catalog.load(store, name, read_token(token_file))
    if found is None:
        raise UserError(f"{store.url}: there is no snapshot of key {name[:16]}; see `robust env list`")
    return found
