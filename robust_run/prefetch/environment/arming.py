"""How a worker is made to note the files that it opens: through its environment alone, with nothing changed in its program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

ARM_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arm")
LARGEST_NOTES_BYTES = 64 << 20


def arm_environment(env: Mapping[str, str], notes: str, roots: Sequence[str], window_s: float) -> dict[str, str]:
    """Return the variables to set for a worker that would otherwise run with `env`; {} where it cannot be armed.

    `notes`: a file that `create` made; `roots`: the folders whose files count. Apply it before the tracer's own
    `arm_environment`, which hands over to what comes after it. The worker takes these variables out again before its program
    starts. One worker for each kind of node is enough.
    """
    original = env.get("PYTHONPATH")
    lines = (notes, *roots)
    if os.pathsep in ARM_FOLDER or any("\n" in line or "\0" in line for line in lines):
        return {}
    if original is not None and ARM_FOLDER in original.split(os.pathsep):
        return {}  # a launcher inside a worker whose Python ignored PYTHONPATH
    return {
        # An empty PYTHONPATH adds nothing to the path, but an empty entry in one would add the working directory.
        "PYTHONPATH": f"{ARM_FOLDER}{os.pathsep}{original}" if original else ARM_FOLDER,
        "ROBUST_ENV_PYTHONPATH": "" if original is None else f"={original}",
        "ROBUST_ENV_RECORD": "\n".join((f"{window_s:g}", *lines)),
    }


def create(notes: str) -> None:
    """Make the file for a worker's notes, empty, for its owner alone. Raises OSError."""
    os.close(os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def mapped_files(pid: int) -> list[str]:
    """Return the files that a process of ours has mapped; [] where it is gone or not ours."""
    found: dict[str, None] = {}
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            for line in lines:
                parts = line.rstrip("\n").split(None, 5)
                if len(parts) == 6 and parts[5].startswith("/"):
                    found.setdefault(parts[5])
    except OSError:
        return []
    return list(found)
