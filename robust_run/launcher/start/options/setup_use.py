"""From the options about a set-up to `SetupUse`: every path absolute. For jobs that have a set-up."""

from __future__ import annotations

from robust_run.errors import UserError
from robust_run.launcher.model.job_parts import SetupUse
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.start.options.options import Options
from robust_run.prefetch.launch import default_cache
from robust_run.snapshot.defaults import default_store


def resolve_setup(options: Options, world: World) -> SetupUse:
    """Return which set-up a job has. Raises UserError, one line, for the first thing that cannot be."""
    if not all(command.strip() for command in options.setup):
        raise UserError("--setup '': the command is empty; write what to run, or leave it out")
    store = options.setup_store or default_store(world.env)
    return SetupUse(
        commands=options.setup,
        files=tuple(_readable("--setup-file", path, world) for path in options.setup_file),
        store=store if "://" in store else absolute(store, world),
        token_file=_readable("--setup-token-file", options.setup_token_file, world)
        if options.setup_token_file
        else None,
        refresh=options.refresh_setup,
        cache=absolute(options.image_cache or default_cache(world.env.get), world),
    )


def _readable(option: str, path: str, world: World) -> str:
    found = absolute(path, world)
    kind = world.files.kind(found)
    if kind != "file":
        what = "there is no such file" if kind == "missing" else f"it is a {kind}"
        raise UserError(f"{option} {path!r}: {what}; check the name")
    return found
