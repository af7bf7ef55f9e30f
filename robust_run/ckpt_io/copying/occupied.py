"""What lies where a checkpoint is to be restored to. One that was committed is never made worse.

Parts have the save's uuid in their names, so another save's are not touched before the commit. Those of the same save have the
same names in any layout: where a manifest says that they are in use, they must be in the very same layout.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing

from robust_run.ckpt_io.copying.types import CopyPlan
from robust_run.ckpt_io.errors import ManifestRefused, NotACheckpoint
from robust_run.ckpt_io.finding import read_manifest
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path, parts_folder
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.errors import PlatformError, UserError
from robust_run.store import paths
from robust_run.store.opening import local_path, open_store


def local_parts(source: Checkpoint) -> tuple[str, ...]:
    """Return the paths of a checkpoint's parts, as far as they are on this machine."""
    found = []
    for target in range(len(source.manifest.targets)):
        url = source.targets.url(target)
        if paths.scheme_of(url) in ("", "file"):
            folder = local_path(url)
            found += [os.path.join(folder, layout.part_path(target)) for layout in source.layouts]
    return tuple(found)


def check_not_source(written: Iterable[str], source: Iterable[str]) -> None:
    """Raise UserError if a file to be written is one of the source's, by any name."""
    of_source = {identity: path for path in source if (identity := _identity(path)) is not None}
    for path in written:
        if (identity := _identity(path)) in of_source:
            assert identity is not None
            raise UserError(
                f"source and destination are the same: {path} is {of_source[identity]}; name a new folder, "
                "and other --also roots"
            )


def check_apart(destination: str, source_folder: str) -> None:
    """Raise UserError if a copy of a folder would lie in that folder: it would be a part of what it is a copy of."""
    source, place = os.path.realpath(source_folder), os.path.realpath(destination)
    if source_folder and (place == source or place.startswith(f"{source.rstrip('/')}/")):
        raise UserError(f"{destination} lies in {source_folder}, which is to be copied: name a folder outside of it")


def check_way(plan: CopyPlan) -> None:
    """See that nothing stands where something is to be put, before anything is made.

    Raises:
        UserError: A folder where a file is to be, or the other way round.
        PlatformError: A link among the folders that things are put into: it leads to files elsewhere.
    """
    into = set(plan.folders) | {os.path.dirname(path) for path in (*plan.sizes, *plan.links)}
    for folder in sorted(into):
        _check_folders(folder, plan.roots)
    for path in (*plan.final_of.values(), *plan.links):
        if os.path.isdir(path) and not os.path.islink(path):
            raise UserError(f"{path} is a folder, and a file is to be put there: remove it, or name a new folder")


def _check_folders(folder: str, roots: tuple[str, ...]) -> None:
    for root in roots:
        at = folder
        while at.startswith(f"{root}/"):
            if os.path.islink(at):
                raise PlatformError(f"{at} is a symbolic link, and nothing is written through one: remove it")
            if os.path.lexists(at) and not os.path.isdir(at):
                raise UserError(f"{at} is a file, and a folder is to be made there: remove it, or name a new folder")
            at = os.path.dirname(at)
        if root == at and os.path.lexists(at) and not os.path.isdir(at):
            raise UserError(f"{at} is a file, and a folder is to be made there: name another")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_free(here: Manifest, folders: Sequence[str]) -> bool:
    """Return whether the checkpoint of `here` was committed in these folders already, in that layout.

    Raises:
        UserError: It was, in another layout; or its manifest is damaged, so that the layout is not known.
    """
    committed = False
    for folder in folders:
        for path in (MANIFEST_PATH, copy_path(here.uuid)):
            found = _manifest(folder, path, here.uuid)
            if found is None or found.uuid != here.uuid:
                continue
            if found.files != here.files or _places(found) != _places(here):
                raise UserError(
                    f"{folder} holds this checkpoint already, in another layout (targets: {_told(found, folder)}), "
                    f"which would be lost: mend it with robust ckpt repair, or name a new folder"
                )
            committed = True
    return committed


def _manifest(folder: str, path: str, uuid: str) -> Manifest | None:
    try:
        with closing(open_store(folder)) as store:
            return read_manifest(store, folder, path).manifest
    except NotACheckpoint:
        return None
    except ManifestRefused as error:
        if not os.path.lexists(os.path.join(folder, parts_folder(uuid))):
            return None  # of another save
        raise UserError(
            f"{folder} holds parts of this checkpoint, and its {path} is damaged: mend it with robust ckpt repair, "
            "or name a new folder"
        ) from error


def _places(manifest: Manifest) -> list[str]:
    return [local_path(target) if paths.scheme_of(target) == "file" else target for target in manifest.targets]


def _told(manifest: Manifest, folder: str) -> str:
    return ", ".join(folder if target == "." else target for target in manifest.targets)
