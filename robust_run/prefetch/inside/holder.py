"""The process that makes the place and keeps it: `python -m robust_run.prefetch.inside.holder`, with a socket to its starter.

It is told the plan, tries what the machine allows, enters a mount namespace of its own, has the image's file system made in it
and, in a second namespace, makes that the root. It hands out descriptors of the namespaces and then keeps the block server until
its starter hangs up (`mounts.holding`).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from robust_run.errors import InternalError, RobustRunError
from robust_run.mounts import facts, namespace, squashfs, syscalls
from robust_run.mounts.holding import HolderReady, HolderResult, Tell, main, own_namespace
from robust_run.prefetch import server
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import InsideFailed
from robust_run.prefetch.inside import binds, environment, view
from robust_run.prefetch.inside.troubles import Troubles
from robust_run.prefetch.inside.types import IMAGE, STAGE, Bind, InsidePlan, Laid, LaidBlocks
from robust_run.prefetch.rules.mount_ladder import MountChoice, Need, choose
from robust_run.prefetch.server.config import LARGEST_CONFIG_BYTES

#: Where what is laid over an image is shown as a file, on the stage.
_LAID_BLOCKS = "laid-blocks"


@dataclass
class Holding:
    """What lives for as long as the place does."""

    choice: MountChoice
    block_server: server.ServerHandle | None = None
    laid_server: server.ServerHandle | None = None
    cache: Cache | None = None
    namespaces: list[int] = field(default_factory=list)
    """Descriptors: of the mount namespace, then of the user namespace if there is one."""
    below: view.Below = field(default_factory=view.Below)
    """The image, with what is laid over it."""
    changes: int = -1
    """Descriptor of the folder that keeps changes to the image, locked."""
    uid: int = field(default_factory=os.geteuid)
    """Who we are outside of the user namespace."""
    gid: int = field(default_factory=os.getegid)


def make(plan: InsidePlan, troubles: Troubles) -> tuple[Holding, HolderReady]:
    """Make the place. For a process with one thread, which is changed by it for good.

    Raises `RobustRunError`s of all kinds, with everything that is mounted still there: end the process then.
    """
    stage = os.path.join(os.path.abspath(plan.cache_root), STAGE)
    try:
        os.makedirs(stage, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InsideFailed(f"{stage}: {error.strerror}: name another --image-cache folder") from error
    found = facts.gather(stage, os.environ)
    cache = _whole(plan, troubles) if plan.served and found.fuse else None
    served = plan.served and cache is None
    choice = choose(found, Need(served=served, writable=plan.writable is not None), plan.rungs)
    holding = Holding(choice, cache=cache)
    as_user = choice.namespace == "user"
    namespace.enter(as_user=as_user)
    try:
        if plan.writable not in (None, "memory"):
            holding.changes = _only_ours(str(plan.writable))
        flags = syscalls.NO_SETUID | syscalls.NO_DEVICES
        syscalls.mount("tmpfs", stage, source="robust-run", flags=flags, options="mode=0755")
        os.chdir(stage)
        _mount(plan, holding, troubles)
        if plan.laid is not None:
            _lay(plan.laid, plan, holding, troubles)
        return holding, _show(plan, holding, as_user=as_user)
    except OSError as error:
        raise InsideFailed(f"{error.filename or stage}: {error.strerror}: the image cannot be entered") from error


def _only_ours(folder: str) -> int:
    """Lock the folder that keeps changes: two jobs that write to one would spoil it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InsideFailed(f"--image-writable {folder}: another job uses it; name another folder") from error
    return descriptor


def _whole(plan: InsidePlan, troubles: Troubles) -> Cache | None:
    """Return the cache where the whole image is in it, for a machine on which no block server can show it.

    What reads it then verifies nothing, so all of it is verified now: that takes as long as to read it. With a block server, each
    block is verified when it is read, and no read waits for the others.
    """
    cache = Cache(plan.cache_root, plan.block_map)
    if cache.complete:
        wrong = cache.sift()
        if not wrong:
            return cache
        blocks = "1 block" if len(wrong) == 1 else f"{len(wrong)} blocks"
        digests = "its digest; it is" if len(wrong) == 1 else "their digests; they are"
        troubles.noted(f"{blocks} in the cache {plan.cache_root} did not match {digests} fetched again")
    cache.close()
    return None


def _mount(plan: InsidePlan, holding: Holding, troubles: Troubles) -> None:
    """Make the image's file system at `IMAGE`."""
    os.mkdir(IMAGE)
    if holding.choice.rung == "unpack":
        from robust_run.prefetch.mount import unpack  # brings the fetching along

        holding.cache = holding.cache or Cache(plan.cache_root, plan.block_map)
        tool = squashfs.tool_in(os.environ, "unsquashfs") or ""
        tree = unpack.ensure(holding.cache, plan.image_url, tool, plan.serve_options, plan.limit_s)
        syscalls.bind(tree, IMAGE)
        syscalls.make_read_only(IMAGE, syscalls.NO_SETUID | syscalls.NO_DEVICES)
        return
    image, offset_bytes = os.path.abspath(plan.image_url), plan.block_map.offset_bytes
    if holding.cache is not None:
        image, offset_bytes = holding.cache.path, 0
    elif plan.served:
        holding.block_server = _served(plan, "blocks", troubles)
        image, offset_bytes = holding.block_server.image_path, 0
    _mount_file(image, IMAGE, plan, holding, troubles, offset_bytes)


def _lay(laid: Laid, plan: InsidePlan, holding: Holding, troubles: Troubles) -> None:
    """Lay what a set-up changed over the image."""
    if holding.choice.tree != "overlay":
        raise InsideFailed(f"{plan.image_url}: a set-up cannot be laid over it: this kernel has no overlayfs for us")
    os.mkdir(view.LAID)
    target = os.path.abspath(view.LAID)
    if laid.blocks is not None:
        _lay_blocks(laid.blocks, plan, holding, troubles)
    elif holding.choice.rung == "unpack":
        from robust_run.prefetch.mount import unpack

        os.rmdir(target)
        unpack.unpack(squashfs.tool_in(os.environ, "unsquashfs") or "", laid.path, target, plan.limit_s)
    elif holding.choice.rung == "kernel":
        squashfs.by_loop(laid.path, target)
    else:
        tool = squashfs.squashfuse_in(os.environ) or ""
        process = squashfs.by_squashfuse(tool, laid.path, target, limit_s=plan.limit_s)
        threading.Thread(target=troubles.reader_ended, args=(process.wait,), daemon=True).start()
    holding.below = view.lay(laid.layers, as_user=holding.choice.namespace == "user")


def _lay_blocks(laid: LaidBlocks, plan: InsidePlan, holding: Holding, troubles: Troubles) -> None:
    """Mount what a set-up changed before it is here."""
    if holding.choice.rung == "unpack":
        raise InsideFailed(f"{laid.image_url}: nothing can be mounted here before it is brought as a whole")
    holding.laid_server = _served(laid, _LAID_BLOCKS, troubles)
    _mount_file(holding.laid_server.image_path, view.LAID, plan, holding, troubles)


def _served(what: InsidePlan | LaidBlocks, folder: str, troubles: Troubles) -> server.ServerHandle:
    """Have a block server show an image as a file in a new folder."""
    os.mkdir(folder)
    handle = server.start(
        what.image_url,
        what.block_map,
        what.cache_root,
        os.path.abspath(folder),
        hot=what.hot,
        options=what.serve_options,
        on_problem=troubles.happened,
        on_lost=troubles.reads_failed,
        on_note=troubles.noted,
    )
    troubles.serving(handle)
    handle.leave_device_to_keeper()
    return handle


def _mount_file(
    image: str, folder: str, plan: InsidePlan, holding: Holding, troubles: Troubles, offset_bytes: int = 0
) -> None:
    """Mount an image file at a folder, by the reader that was chosen."""
    target = os.path.abspath(folder)
    if holding.choice.rung == "kernel":
        squashfs.by_kernel(image, target, offset_bytes=offset_bytes, limit_s=plan.limit_s)
        return
    tool = squashfs.squashfuse_in(os.environ) or ""
    process = squashfs.by_squashfuse(tool, image, target, offset_bytes=offset_bytes, limit_s=plan.limit_s)
    threading.Thread(target=troubles.reader_ended, args=(process.wait,), daemon=True).start()


def _show(plan: InsidePlan, holding: Holding, *, as_user: bool) -> HolderReady:
    """Make what programs will see, and note the namespaces in which they see it."""
    below = holding.below
    env = environment.of_image(below.tree)
    python = environment.python_in(below.tree, env)
    mount_at = plan.block_map.mount_at
    if mount_at is None:
        root = view.make_root(
            (*plan.binds, *_accounts(plan.binds, holding)),
            holding.choice.tree,
            as_user=as_user,
            writable=plan.writable,
            name=plan.image_url,
            below=below,
        )
        holding.namespaces.append(_namespace_with_root(root))
    else:
        view.place_environment(mount_at, plan.binds, as_user=as_user, writable=plan.writable, below=below)
        holding.namespaces.append(own_namespace("mnt"))
        python = os.path.join(mount_at, python.lstrip("/")) if python else ""
    if as_user:
        holding.namespaces.append(own_namespace("user"))
    return HolderReady(
        rung=holding.choice.rung,
        chosen=holding.choice.sentence(),
        in_user_namespace=as_user,
        control_path=holding.block_server.control_path if holding.block_server else "",
        laid_control_path=holding.laid_server.control_path if holding.laid_server else "",
        env=env,
        python=python,
        mount_at=mount_at or "",
    )


def _accounts(taken: Sequence[Bind], holding: Holding) -> list[Bind]:
    """Return binds of the image's own lists of users and groups, with us in them; none where they know us already."""
    uid, gid, tree = holding.uid, holding.gid, holding.below.tree
    name = os.environ.get("LOGNAME") or os.environ.get("USER") or "user"
    files = {
        "/etc/passwd": binds.passwd(
            environment.text_in(tree, "/etc/passwd") or "", uid, gid, name, os.environ.get("HOME", "/")
        ),
        "/etc/group": binds.group(environment.text_in(tree, "/etc/group") or "", gid, name),
    }
    made = []
    for path, text in files.items():
        if text is not None and not any(bind.destination in (path, "/etc") for bind in taken):
            source = os.path.abspath(os.path.basename(path))
            with open(source, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            made.append(Bind(source=source, destination=path))
    return made


def _namespace_with_root(root: str) -> int:
    """Return a descriptor of a new mount namespace with this root.

    A thread makes it: Linux keeps namespace, root and working directory per thread, so ours stay as they are without a fork.
    """
    made: list[int] = []
    failed: list[OSError] = []

    def within() -> None:
        try:
            syscalls.unshare(syscalls.NEW_MOUNTS)
            made.append(os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            syscalls.become_root(root)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=within)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def hold(line: bytes, tell: Tell) -> HolderResult:
    """Make the place that a starter's line describes. Raises nothing that has a reason to tell."""
    try:
        plan = msgspec.json.decode(line, type=InsidePlan)
    except msgspec.MsgspecError as error:
        raise InternalError(f"the starter gave no plan: {error}") from error
    troubles = Troubles(tell)
    try:
        holding, ready = make(plan, troubles)
        troubles.made()
    except RobustRunError as error:
        lost = troubles.why()
        cause = f"{plan.image_url}: it cannot be mounted: {lost}" if lost else str(error)
        return HolderResult(ready=HolderReady(failed=cause), exit_code=error.exit_code)

    def stop() -> None:  # it also keeps what is held: a cache that is in use is not pruned
        for each in (holding.laid_server, holding.block_server):
            if each is not None:
                each.stop()

    return HolderResult(ready=ready, namespaces=holding.namespaces, stop=stop)


if __name__ == "__main__":
    sys.exit(main(hold, LARGEST_CONFIG_BYTES))
