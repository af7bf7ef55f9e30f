"""What a rung makes in a mount namespace that the caller has entered: the image, and overlays of it over the captured roots.

Two kinds of callers: a thread of the launcher (`directly`) and a process of its own (`holder`).

**Invariant:** what `StagePlace.make` returns from was looked at; after an error, nothing of that rung is mounted.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from typing import Any

import msgspec

from robust_run.mounts.holding import Problem, Tell
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore import mounting
from robust_run.snapshot.restore.unpacked import Folder
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules import restore_ladder as ladder
from robust_run.snapshot.rules.restore_ladder import NAMESPACED, Rung
from robust_run.snapshot.rules.types import Item, SnapshotManifest
from robust_run.snapshot.verify import check_tree

# --- What the process is told that puts a snapshot into a namespace, and keeps it there.

LARGEST_ORDER_BYTES = 256 << 20


class PlaceOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is needed to make a place in which a snapshot is restored."""

    manifest: SnapshotManifest
    image: str
    """Path of the verified image; its URL if it is lazy."""
    image_url: str
    """For messages."""
    stage: str
    """An empty folder of ours, which is mounted on in the private namespace only."""
    unpack_in: tuple[Folder, ...] = ()
    """Where images may be unpacked."""
    lazy: msgspec.Raw = msgspec.Raw(b"null")
    """An `InsidePlan` of `prefetch`, if the image is shown by a block server; read only then, as that imports much."""
    rungs: tuple[Rung, ...] = NAMESPACED
    """Those that may be used."""
    writable: bool = True
    """Whether workers may write to the environment; what they write is in memory and ends with the job."""
    limit_s: float = 600.0
    """How long all of it may take."""
    binds: tuple[Any, ...] = ()
    """Nothing of the host is bound: all of it is seen."""

    @property
    def is_lazy(self) -> bool:
        """Whether the image is not here yet."""
        return bytes(self.lazy) != b"null"


#: So many files of a restored environment are looked at: neighbours in so many places. Each takes a block to unpack.
_PLACES, _NEIGHBOURS = 8, 4
#: So many of them are read, if they are small.
_READ, _READ_BYTES = 4, 64 << 10
_LINE_BYTES = 64 << 10
_BUFFER_BYTES = 4096


class StagePlace:
    """What is made in a folder: the stage, on which memory is mounted."""

    def __init__(
        self,
        order: PlaceOrder,
        folder: str,
        *,
        as_user: bool,
        writable: bool,
        tell: Tell = lambda _problem: None,
    ) -> None:
        """`tell` hears later what goes wrong with a block server, and what is worth knowing of it."""
        self._order, self._folder, self._as_user = order, folder, as_user
        self._tell = tell
        self._scratch = mounting.WriteArea(folder=os.path.join(folder, "changes")) if writable else None
        self._image_at = os.path.join(folder, "image")
        self.server: Any = None
        """The block server of a lazy image."""
        self.unpacked: Any = None
        """What was unpacked; it is used until it is let go, or this process ends."""

    def make(self, rung: ladder.Rung) -> None:
        """Restore it in one way. After an error, nothing of that way is mounted."""
        os.makedirs(self._image_at, exist_ok=True)
        manifest = self._order.manifest
        mounted = self._extracted() if rung == "extract" else self._mounted(rung)
        try:
            check(manifest, mounted.image_at, is_lazy=self._order.is_lazy)
        except BaseException:
            mounted.undo()
            raise

    def _mounted(self, rung: ladder.Rung) -> mounting.MountedSnapshot:
        order = self._order
        image = self._served(order.lazy) if order.is_lazy else order.image
        reader: mounting.Reader = "kernel" if rung == "mount" else "squashfuse"
        return mounting.mount(
            order.manifest, image, self._image_at, reader=reader, userns=self._as_user, scratch=self._scratch
        )

    def _served(self, raw: msgspec.Raw) -> str:
        """Start the block server and return the file that it shows."""
        if self.server is None:
            from robust_run.prefetch import server
            from robust_run.prefetch.inside.types import InsidePlan

            plan = msgspec.json.decode(raw, type=InsidePlan)
            blocks = os.path.join(self._folder, "blocks")
            os.mkdir(blocks)
            self.server = server.start(
                plan.image_url,
                plan.block_map,
                plan.cache_root,
                blocks,
                hot=plan.hot,
                options=plan.serve_options,
                on_problem=lambda sentence: self._tell(Problem(sentence)),
                on_lost=lambda sentence: self._tell(Problem(sentence, has_lost_reads=True)),
                on_note=lambda sentence: self._tell(Problem(sentence, is_note=True)),
            )
            self.server.leave_device_to_keeper()
        return str(self.server.image_path)

    def _extracted(self) -> mounting.MountedSnapshot:
        """Unpack it, and give what was unpacked the looks of an image: names that were removed are hidden from here."""
        from robust_run.snapshot.capture.stage import make_whiteouts
        from robust_run.snapshot.restore import unpacked

        order = self._order
        found = self.unpacked = unpacked.unpack(order.manifest, order.image, order.unpack_in)
        view = os.path.join(self._folder, "view")
        os.makedirs(view, exist_ok=True)
        shutil.copyfile(os.path.join(found.path, listing.NAME), os.path.join(view, listing.NAME))
        for name in (f"r{root.folder}" for root in order.manifest.roots if root.changed):
            os.symlink(os.path.join(found.path, name), os.path.join(view, name))
        removed = found.removed() if any(root.removed for root in order.manifest.roots) else []
        for index, root in enumerate(order.manifest.roots):
            gone = [item.path for item in removed if item.root == index]
            if gone and not make_whiteouts(os.path.join(view, f"w{root.folder}"), gone):
                raise RestoreRefused(f"{root.path}: {len(gone)} names were removed, and this kernel hides none for us")
        manifest = msgspec.structs.replace(order.manifest, has_whiteouts=True)
        mounted = mounting.MountedSnapshot(view, None)
        try:
            mounting.lay_over(manifest, view, mounted, userns=self._as_user, scratch=self._scratch)
        except BaseException:
            mounted.undo()
            raise
        return mounted


def check(manifest: SnapshotManifest, image_at: str, *, is_lazy: bool) -> None:
    """Look at a few files of a restored environment, chosen at random. Raises `RestoreRefused`.

    The image as a whole was verified before; what could be wrong is what was made of it.
    """
    if is_lazy:
        return  # each block is verified as it comes, and looking would wait for blocks that no program needs
    tops = [root.path for root in manifest.roots]
    unread = _READ
    for item in sample(os.path.join(image_at, listing.NAME), _PLACES, _NEIGHBOURS):
        if not 0 <= item.root < len(tops):
            continue
        if item.kind == "w":  # the same name may have been made anew
            anew = os.path.join(image_at, f"r{manifest.roots[item.root].folder}", item.path)
            if not os.path.lexists(anew) and os.path.lexists(os.path.join(tops[item.root], item.path)):
                raise RestoreRefused(f"what was mounted is not what was captured: {item.path} should be gone")
            continue
        reads = item.kind == "f" and item.size_bytes <= _READ_BYTES and unread > 0
        unread -= reads
        problems = check_tree(tops, [item], digests=float(reads), exact=False)
        if problems:
            raise RestoreRefused(f"what was mounted is not what was captured: {problems[0]}")


def sample(path: str, places: int, neighbours: int) -> list[Item]:
    """Return some lines of a listing of a verified image, without reading all of it. Raises OSError.

    Lines that follow each other are of one folder, and cost little more than one.
    """
    found = []
    with open(path, "rb", buffering=_BUFFER_BYTES) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        for _ in range(places):
            file.seek(random.randrange(max(1, size_bytes)))  # noqa: S311 - which files are looked at is no secret
            file.readline(_LINE_BYTES)  # the rest of a line
            for _ in range(neighbours):
                line = file.readline(_LINE_BYTES).rstrip(b",]\n")
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(line + b"]", type=Item))
    return found
