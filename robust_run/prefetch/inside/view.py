"""What programs inside see: the image, mount points that it lacks, and the host's files on them.

An image is read-only, so a folder that it lacks cannot be made in it. Two ways: overlayfs puts a layer with such folders above
it; where there is no overlayfs, a tree of folders is made in memory and the image's parts are bound into it.
Runs in the private namespace, with the stage (a tmpfs of ours) as working directory. Symbolic links of the image are followed
inside of it only: a hostile one leads nowhere else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from robust_run.mounts import overlay, syscalls
from robust_run.prefetch.errors import InsideFailed
from robust_run.prefetch.image.places import NoPlaceError, resolve
from robust_run.prefetch.inside.types import IMAGE, Bind
from robust_run.prefetch.rules.mount_ladder import Tree

NEW_ROOT = "root"
#: Where a set-up is mounted that is laid over the image, and the two together.
LAID, _TOGETHER = "laid", "together"
_LAYER, _UPPER = "layer", "upper"
#: Binds that an image without overlayfs may cost.
_MOST_PARTS = 20_000


@dataclass(frozen=True)
class Below:
    """What lies below the mount points and what workers write: the image, or an image and what is laid over it."""

    tree: str = IMAGE
    """Where it can be looked at."""
    layers: tuple[str, ...] = (IMAGE,)
    """What an overlay of it is made of, the uppermost first."""


def lay(layers: Sequence[str], *, as_user: bool) -> Below:
    """Return the image at `IMAGE` with these layers over it, which lie below `LAID`. Raises OSError."""
    os.mkdir(_TOGETHER)
    below = (*(os.path.join(LAID, layer) for layer in layers), IMAGE)
    flags = syscalls.NO_SETUID | syscalls.NO_DEVICES | syscalls.READ_ONLY
    options = overlay.options_for(f"lowerdir={':'.join(below)}", as_user=as_user)
    syscalls.mount("overlay", _TOGETHER, flags=flags, options=options)
    return Below(_TOGETHER, below)


def present(binds: Sequence[Bind]) -> list[Bind]:
    """Return the binds whose source is there. Raises `InsideFailed` for one that must be and is not."""
    found = []
    for bind in binds:
        if os.path.exists(bind.source):
            found.append(bind)
        elif not bind.optional:
            raise InsideFailed(f"--bind {bind.source}: the host has no such file or folder")
    return found


def make_root(
    binds: Sequence[Bind],
    tree: Tree,
    *,
    as_user: bool,
    writable: str | None,
    name: str = "the image",
    below: Below = Below(),
) -> str:
    """Make the root file system from the image, and return its path. Raises `InsideFailed`.

    `binds`: in order, see `binds.ordered`; `name`: of the image, for messages; `below`: see `lay`.
    """
    binds = present(binds)
    try:
        os.listdir(below.tree)  # squashfuse mounts whatever has a whole first block
    except OSError as error:
        why = f"its root folder cannot be listed: {error.strerror}"
        raise InsideFailed(f"{name}: {why}: it is damaged; copy or build it again") from error
    outer = [bind for bind in binds if not any(_is_in(bind, other) for other in binds)]
    try:
        wanted = {_place(below.tree, bind): os.path.isdir(bind.source) for bind in outer}
        if tree == "overlay":
            _overlay(wanted, below, as_user=as_user, writable=writable)
        else:
            os.mkdir(NEW_ROOT)
            syscalls.bind(NEW_ROOT, NEW_ROOT)  # a mount of its own: the root of a namespace must be one
            assemble(below.tree, NEW_ROOT, wanted)
        for bind in binds:
            if not _fits_in(NEW_ROOT, bind) and not _leads_into_another(
                bind, binds, below
            ):  # a place was made for it above
                raise InsideFailed(
                    f"{name}: there is no place for {bind.destination} in it: it is damaged; copy or build it again"
                )
            _bind(bind)
            _hide_stage(bind)
    except OSError as error:
        raise InsideFailed(f"{name}: {error.filename or 'in it'}: {error.strerror}: it cannot be entered") from error
    return os.path.abspath(NEW_ROOT)


def _is_in(bind: Bind, other: Bind) -> bool:
    return bind is not other and os.path.normpath(bind.destination).startswith(
        os.path.normpath(other.destination) + "/"
    )


def _place(root: str, bind: Bind) -> str:
    """Return where a destination is in a root, without links."""
    try:
        place = resolve(root, bind.destination)
    except NoPlaceError as error:
        raise InsideFailed(f"--bind {bind.destination}: {error}") from error
    if not place:
        raise InsideFailed(f"--bind {bind.destination}: that is the root of the image")
    return place


def _overlay(wanted: dict[str, bool], below: Below, *, as_user: bool, writable: str | None) -> None:
    os.mkdir(_LAYER, 0o755)
    for place, is_folder in sorted(wanted.items()):
        _make(place, is_folder, below.tree)
    options = f"lowerdir={':'.join((_LAYER, *below.layers))}"
    if writable is not None:
        os.mkdir(_UPPER, 0o755)
        if writable != "memory":
            syscalls.bind(writable, _UPPER)
        for name in ("changes", "work"):
            os.makedirs(os.path.join(_UPPER, name), 0o755, exist_ok=True)
        options += f",upperdir={_UPPER}/changes,workdir={_UPPER}/work"
        options += "" if as_user else ",redirect_dir=off,metacopy=off"  # changes are whole files, whatever lies below
    os.mkdir(NEW_ROOT)
    flags = syscalls.NO_SETUID | syscalls.NO_DEVICES
    syscalls.mount("overlay", NEW_ROOT, flags=flags, options=overlay.options_for(options, as_user=as_user))


def _make(place: str, is_folder: bool, tree: str) -> None:
    """Put a mount point into the layer, unless the image has it. Folders above it look as they do in the image."""
    if _fits(os.path.join(tree, place), is_folder):
        return
    done = ""
    for part in os.path.dirname(place).split("/"):
        done = os.path.join(done, part)
        folder = os.path.join(_LAYER, done)
        if done and not os.path.isdir(folder):
            os.mkdir(folder)
            os.chmod(folder, _mode(os.path.join(tree, done)))
    _mount_point(os.path.join(_LAYER, place), is_folder)


def _fits(path: str, is_folder: bool) -> bool:
    return os.path.isdir(path) if is_folder else os.path.lexists(path) and not os.path.isdir(path)


def _mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode) if os.path.isdir(path) else 0o755


def _mount_point(path: str, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def assemble(source: str, made: str, wanted: dict[str, bool]) -> None:
    """Fill the folder `made` with binds of what is in `source`, so that each wanted mount point exists; True: as a folder.

    Raises `InsideFailed` where that takes too many.
    """
    missing = {
        place: is_folder for place, is_folder in wanted.items() if not _fits(os.path.join(source, place), is_folder)
    }
    opened = {""}
    for place in missing:
        parts = place.split("/")
        opened.update("/".join(parts[:count]) for count in range(1, len(parts)))
    parts_made = 0
    for folder in sorted(opened, key=lambda path: (path.count("/") if path else -1, path)):
        here = os.path.join(source, folder)
        if folder:
            os.makedirs(os.path.join(made, folder), exist_ok=True)
        if os.path.isdir(here):
            os.chmod(os.path.join(made, folder), _mode(here))
            parts_made += _fill(here, os.path.join(made, folder), folder, opened, missing)
        if parts_made > _MOST_PARTS:
            raise InsideFailed("its folders have too many entries to be put together without overlayfs")
    for place, is_folder in missing.items():
        _mount_point(os.path.join(made, place), is_folder)


def _fill(here: str, made: str, folder: str, opened: Collection[str], missing: Collection[str]) -> int:
    count = 0
    for entry in os.scandir(here):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if path in opened or path in missing:
            continue
        place = os.path.join(made, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        _mount_point(place, entry.is_dir())
        syscalls.bind(entry.path, place)
        count += 1
    return count


def _leads_into_another(bind: Bind, binds: Sequence[Bind], below: Below) -> bool:
    """Whether a destination lies in that of another bind, through links of the image or plainly."""
    place = _place(below.tree, bind)
    return any(place.startswith(_place(below.tree, other) + "/") for other in binds if other is not bind)


def _fits_in(root: str, bind: Bind) -> bool:
    return _fits(os.path.join(root, _place(root, bind)), os.path.isdir(bind.source))


def _bind(bind: Bind) -> None:
    place = os.path.join(NEW_ROOT, _place(NEW_ROOT, bind))
    if not _fits_in(NEW_ROOT, bind):
        raise InsideFailed(
            f"--bind {bind.source}:{bind.destination}: it lies in what another bind shows, where there is no such"
            f" {'folder' if os.path.isdir(bind.source) else 'file'}: make it there, or bind to another place"
        )
    syscalls.bind(bind.source, place)
    if bind.read_only:
        syscalls.make_read_only(place)


def _hide_stage(bind: Bind) -> None:
    """Where a bind shows the folder in which our stage is mounted, take the stage away there: programs have no use for it."""
    stage = os.getcwd()
    source = os.path.realpath(bind.source)
    if stage.startswith(source.rstrip("/") + "/"):
        syscalls.detach(os.path.join(NEW_ROOT, _place(NEW_ROOT, bind), os.path.relpath(stage, source)))


def place_environment(
    mount_at: str, binds: Sequence[Bind], *, as_user: bool, writable: str | None, below: Below = Below()
) -> None:
    """Show the image in the host's own tree, at the folder where it belongs. Raises `InsideFailed`.

    A folder that the host lacks is made there, empty. Where we may not, the folder above it is replaced, in this namespace, by a
    likeness that has it: what lies in that is the host's own and may be changed, but nothing can be added beside it.
    """
    target = os.path.realpath(mount_at)
    try:
        shown = below.tree
        if writable is not None:
            _overlay({}, below, as_user=as_user, writable=writable)
            shown = NEW_ROOT
        if not _has_folder(target):
            _make_above(target)
        sources = _opened(binds)  # what the image hides of this machine can be bound all the same
        syscalls.bind(shown, target)
        for bind, source in sources:
            syscalls.bind(f"/proc/self/fd/{source}", bind.destination)
            os.close(source)
            if bind.read_only:
                syscalls.make_read_only(bind.destination)
    except OSError as error:
        raise InsideFailed(
            f"{error.filename or target}: {error.strerror}: the environment cannot be put there"
        ) from error


def _opened(binds: Sequence[Bind]) -> list[tuple[Bind, int]]:
    """Return the binds whose source is there, with a descriptor of it. Raises OSError, `InsideFailed`."""
    return [(bind, os.open(bind.source, os.O_PATH | os.O_CLOEXEC)) for bind in present(binds)]


def _has_folder(path: str) -> bool:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return False
    return True


def _make_above(target: str) -> None:
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if above == "/":
        raise InsideFailed(f"{target}: the host has no folder /{target.split('/')[1]}; have it made once")
    os.mkdir("above")
    assemble(above, "above", {os.path.relpath(target, above): True})
    syscalls.bind("above", above)
    # It lies in memory. Who adds a file there gets an error, as on the host, and not one that is gone when the job ends.
    syscalls.make_read_only(above)
