"""Run by tests as another user: builds a snapshot of a new environment, mounts it, prints what a program in it sees."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from snapshot.environments import Environment, check_look

from robust_run.mounts import namespace
from robust_run.snapshot.capture.capturing import capture, discard
from robust_run.snapshot.pack import pack
from robust_run.snapshot.restore import mounting


def main(folder: str) -> None:
    """Do it in a folder that is ours."""
    environment = Environment(Path(folder), sys.executable)
    setup = environment.setup(way="overlay")
    captured = capture(setup)
    image = os.path.join(folder, "image.sqsh")
    packed = pack(captured, image)
    manifest = environment.manifest(captured, packed, setup)
    discard(captured)
    left = os.listdir(environment.work)
    userns = namespace.enter_as_oneself()
    at = os.path.join(folder, "at")
    os.mkdir(at)
    mounted = mounting.mount(manifest, image, at, reader="squashfuse", userns=userns)
    check_look(environment, environment.look())
    writable = os.access(environment.site, os.W_OK)
    mounted.undo()
    said = {"method": captured.method, "userns": userns, "left": left, "writable": writable, "uid": os.getuid()}
    print(json.dumps({**said, "after": os.path.exists(f"{environment.site}/oddpack"), "reasons": captured.reasons}))


if __name__ == "__main__":
    main(sys.argv[1])
