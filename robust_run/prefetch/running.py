"""One program inside an image, without a job: what `robust image record` and `mount` do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from robust_run.mounts.syscalls import die_with_parent
from robust_run.prefetch.commands_shared import cache_folder, this_machine, this_python
from robust_run.prefetch.inside import InsidePlan, start
from robust_run.prefetch.inside import binds as inside_binds
from robust_run.prefetch.inside.handle import Inside
from robust_run.prefetch.launch import Prepared, prepare
from robust_run.prefetch.record import fingerprint, keep
from robust_run.prefetch.window import ImageStart, RecordingWindow, close
from robust_run.terminal import plain

_LOOK_EVERY_S = 0.1


class ImageRun(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    exit_code: int
    start: ImageStart | None = None
    """None: nothing was served, so nothing could be recorded."""
    kept_at: str = ""


def run_inside(
    image: str, command: Sequence[str], binds: Sequence[str], cache_root: str | None, *, record_s: float | None
) -> ImageRun:
    """Run a program inside an image and return when it has ended. `record_s`: length of the window; None: record nothing.

    Raises `ImageError`, `StoreError`, `UserError`.
    """
    launch = fingerprint(command, this_python(), "process")
    prepared = prepare(image, cache_folder(cache_root), launch, this_machine())
    where = os.getcwd()
    plan = InsidePlan(
        image_url=prepared.image_url,
        block_map=prepared.block_map,
        cache_root=prepared.cache_root,
        binds=inside_binds.standard(
            working_directory=where,
            home=os.environ.get("HOME"),
            run_directory=None,
            more=[inside_binds.parse(text) for text in binds],
        ),
        hot=prepared.plan.hot,
        serve_options=prepared.options,
        served=prepared.plan.served or record_s is not None,
    )
    inside = start(plan, on_problem=lambda sentence: print(f"robust: {plain(sentence)}", file=sys.stderr))
    try:
        began_s = time.monotonic()
        ours = os.getpid()
        process = subprocess.Popen(
            inside.command(command, where),
            env=inside.environment(os.environ),
            preexec_fn=lambda: die_with_parent(ours),  # noqa: PLW1509 - it takes no lock
        )
        window = RecordingWindow(began_s, record_s) if record_s is not None and inside.ready.control_path else None
        return _wait(process, inside, prepared, window)
    finally:
        inside.stop()


def _wait(
    process: subprocess.Popen[bytes], inside: Inside, prepared: Prepared, window: RecordingWindow | None
) -> ImageRun:
    ran = ImageRun(exit_code=0)
    while True:
        code = _ended(process, lambda: window is not None and window.ended is None)
        if window is not None:
            # A program that is run to be recorded has no first step: its end is the end of a whole start.
            ended = window.look(time.monotonic(), stepped=code == 0, running=code is None)
            if ended is not None:
                recording, start = close(inside, prepared, ended)
                kept = keep(prepared.store, prepared.key, [recording])
                ran = ImageRun(exit_code=0, start=start, kept_at=kept[1] if kept else "")
        if code is not None:
            return msgspec.structs.replace(ran, exit_code=128 - code if code < 0 else code)


def _ended(process: subprocess.Popen[bytes], look: Callable[[], bool]) -> int | None:
    """Wait for a program's end, as long as there is something to look at in between a moment only."""
    try:
        return process.wait(_LOOK_EVERY_S if look() else None)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        return None  # it has got the signal too, and decides itself
