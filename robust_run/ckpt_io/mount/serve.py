"""The process that serves a mount: `python -m robust_run.ckpt_io.mount.serve OPTIONS`, with the options as JSON.

It says on standard output when it serves, and ends when it is unmounted, at SIGTERM, SIGINT or SIGHUP (libfuse takes them and
unmounts), or, asked to, when its standard input ends: when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from functools import partial
from typing import Any

import msgspec

from robust_run.ckpt_io.mount.types import MountOptions, ServingReady
from robust_run.errors import RobustRunError

#: Requests are short; a thread that wants the interpreter does not wait the usual 5 ms for it.
_SWITCH_S = 0.0005


def main(argv: list[str]) -> int:
    """Serve until the mount is gone. 0: it was unmounted; 1: it could not be mounted, as was said on standard output."""
    options = msgspec.json.decode(argv[1], type=MountOptions)
    sys.setswitchinterval(_SWITCH_S)
    if options.lifeline:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _serve(options)
    except ImportError as error:
        return _failed(f"FUSE cannot be used: {error}; install fuse3 (libfuse3) and the package mfusepy")
    except (RobustRunError, OSError, RuntimeError) as error:
        return _failed(_words(error, options))
    return 0


def _serve(options: MountOptions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from robust_run.ckpt_io.mount.fuse import DirectFuse
    served = threading.Event()
    operations = make_operations(options, on_ready=partial(_ready, served))
    try:
        DirectFuse(
            operations,
            options.point,
            foreground=True,
            fsname=source_name(options.url),
            subtype="rrck",
            direct_io=options.direct_io,
            allow_other=options.allow_other,
            default_permissions=True,
            ro=not options.writable,
        )
    except RuntimeError:
        if not served.is_set():
            raise  # else: libfuse's way to say that a signal ended it


def tree_of(url: str, also: tuple[str, ...] = (), refresh_s: float = 1.0) -> Any:
    """Return the tree of checkpoints below a URL. `also`: further targets. Raises UserError, StoreError."""
    from robust_run.ckpt_io.address import join, normal, split
    from robust_run.ckpt_io.reading import Checkpoint, open_checkpoint
    from robust_run.ckpt_io.views.shelf import Shelf
    from robust_run.ckpt_io.views.tree import ViewTree
    from robust_run.store.opening import open_store

    top = normal(url)

    def opened(url: str) -> Checkpoint:
        """The further targets of what lies below the top lie below theirs."""
        below = split(url)[0].removeprefix(top).strip("/") if url != top else ""
        return open_checkpoint(url, also=tuple(join(root, below) if below else root for root in also))

    return ViewTree(top, Shelf(opened, open_store, time.monotonic, refresh_s), open_store)


def make_operations(options: MountOptions, on_ready: Any) -> Any:
    """Return what answers the kernel."""
    from robust_run.ckpt_io.address import normal
    from robust_run.ckpt_io.mount.operations import ReadOnlyOperations
    from robust_run.ckpt_io.mount.saving_file import Saving
    from robust_run.ckpt_io.mount.writable import WritableOperations
    from robust_run.ckpt_io.views.cache import UnitCache
    from robust_run.store.opening import local_path
    from robust_run.store.paths import scheme_of

    top = normal(options.url)
    if options.writable and scheme_of(top) in ("", "file"):
        os.makedirs(local_path(top), exist_ok=True)
    tree = tree_of(top, options.also, options.refresh_s)
    tree.list("")  # a mount of nothing would only be an empty folder
    cache = UnitCache(options.cache_bytes)
    timeout_s = options.refresh_s if not options.writable else 0.0
    if not options.writable:
        return ReadOnlyOperations(tree, cache, on_ready, timeout_s)
    saving = Saving(options.also, options.unit_bytes, options.codec)
    return WritableOperations(tree, cache, on_ready, timeout_s, saving=saving)


def source_name(url: str) -> str:
    """Return what the mount says it shows: the URL, without what would mean something to mount options."""
    from robust_run.store.paths import shown

    return re.sub(r"[^A-Za-z0-9/:._@+=~-]", "_", shown(url)) or "rrck"


def _ready(served: threading.Event) -> None:
    served.set()
    _say(ServingReady(pid=os.getpid()))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _words(error: Exception, options: MountOptions) -> str:
    if isinstance(error, RuntimeError) and error.args and isinstance(error.args[0], int):
        return f"{options.point}: libfuse refused the mount (code {error.args[0]}); its own words are above"
    return str(error)


def _failed(reason: str) -> int:
    _say(ServingReady(pid=os.getpid(), error=reason))
    return 1


def _say(ready: ServingReady) -> None:
    with contextlib.suppress(BrokenPipeError):  # who started us did not wait
        os.write(1, msgspec.json.encode(ready) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
