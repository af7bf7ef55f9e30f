"""The process that serves a folder in memory: `python -c BOOT OPTIONS`, with the options as JSON.

It says lines of JSON on standard output: first that it serves (`mount.types.ServingReady`), then what `types.FromDir` has. It
hears `types.FinishWithin` on standard input, and ends when that does, or when it is unmounted. No signal but SIGKILL ends it, as
schedulers send SIGTERM to all processes of a job, and workers may save a last step then. What it holds goes with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import msgspec

from robust_run.ckpt_io.memory_dir.types import DirNote, FinishWithin, FromDir, MemoryDirOptions, Progress, Written
from robust_run.ckpt_io.mount.mounts import KIND, unmount
from robust_run.ckpt_io.mount.types import ServingReady
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError, RobustRunError
from robust_run.own_process import boot

_BOOT = boot("robust_run.ckpt_io.memory_dir.process", "sys.exit(main(sys.argv[1]))")
#: How often people hear how far it is.
TELL_S = 2.0
END_S = 5.0
_SWITCH_S = 0.0005
_saying = threading.Lock()


def command(options: MemoryDirOptions) -> tuple[str, ...]:
    """Return what starts the process. No file of the folder it is started in can take the place of a module."""
    return (sys.executable, "-c", _BOOT, msgspec.json.encode(options).decode())


def main(argument: str) -> int:
    """Serve until the mount is gone. 0: it was unmounted; 1: it could not be mounted, as was said on standard output."""
    options = json_decoder(MemoryDirOptions).decode(argument)
    # Not ignored: libfuse sets handlers of its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
    sys.setswitchinterval(_SWITCH_S)
    try:
        _serve(options)
    except ImportError as error:
        return _failed(f"FUSE cannot be used: {error}; install fuse3 (libfuse3) and the package mfusepy")
    except (RobustRunError, OSError, RuntimeError) as error:
        return _failed(str(error))
    os._exit(0)  # no thread is waited for: one may hang in storage


def _serve(options: MemoryDirOptions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from robust_run.ckpt_io.memory_dir.folder import MemoryFolder
        from robust_run.ckpt_io.mount.fuse import DirectFuse
    served = threading.Event()
    folder = MemoryFolder(options, lambda text: _say(DirNote(text=text)))

    def ready() -> None:
        served.set()
        _say(ServingReady(pid=os.getpid()))
        threading.Thread(target=_hear, args=(folder, options.point), daemon=True).start()

    operations = folder.operations(ready)
    folder.start()
    try:
        DirectFuse(
            operations,
            options.point,
            foreground=True,
            fsname="memory",
            subtype=KIND.partition(".")[2],
            default_permissions=True,
        )
    except RuntimeError:
        if not served.is_set():
            raise  # else: libfuse's way to say that it was unmounted


def _hear(folder: Any, point: str) -> None:
    """Do what the agent asks; end when it is gone."""
    for line in sys.stdin.buffer:
        order = json_decoder(FinishWithin).decode(line)
        _say(
            folder.finish(order.limit_s, lambda done, all_of: _say(Progress(done_bytes=done, all_bytes=all_of)), TELL_S)
        )
    with suppress(PlatformError, OSError):
        unmount(point, lazily=True)
    time.sleep(END_S)
    os._exit(1)  # libfuse has not noticed


def _say(message: ServingReady | FromDir | Written) -> None:
    """One line at a time; who does not hear it is gone."""
    with _saying:
        try:
            os.write(1, msgspec.json.encode(message) + b"\n")
        except OSError:
            return


def _failed(reason: str) -> int:
    _say(ServingReady(pid=os.getpid(), error=reason.replace("\n", " ") or "it did not say why"))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
