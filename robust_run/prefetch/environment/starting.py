"""What one launch does with an environment: warm what earlier launches read, have one worker note what it opens, merge that.

start = EnvironmentStart(folder, roots_of(python), launch, machine, notes)
start.warm()                                   # beside the start, in threads
env |= start.arm(env)                          # of one worker
...                                            # the first step is done
start.finish([pid of the worker])              # merges; returns what it brought
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.prefetch.environment import lists
from robust_run.prefetch.environment.lists import HotFiles
from robust_run.prefetch.launch import HOT_WIDTH, RECORD_WINDOW_S

# --- How a worker is made to note the files that it opens: through its environment alone, with nothing changed in its program.

ARM_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arm")


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


class EnvironmentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What warming an environment brought: a part of the start-up report."""

    listed: int
    """Files on the lists; 0: none was known yet."""
    opened: int
    """Files that the start opened."""
    hit_rate: float | None
    """The share of these that was on the lists."""
    warmed_bytes: int
    warmed_s: float
    problems: tuple[str, ...] = ()


class EnvironmentStart:
    """One launch's environment on one node. Nothing in it raises: a start without it is only slower."""

    def __init__(
        self,
        folder: str,
        roots: Sequence[str],
        launch: str,
        machine: str,
        notes: str,
        *,
        window_s: float = RECORD_WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder`: see `lists.default_folder`; `notes`: a file in the run directory for what a worker opens."""
        self._roots, self._notes, self._window_s, self._clock = tuple(roots), notes, window_s, clock
        self._places = {root: lists.place(folder, root, launch, machine) for root in self._roots}
        self._lists: dict[str, HotFiles] = {}
        self._problems: list[str] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_s = clock()
        self._warmed_bytes, self._warmed_s = 0, 0.0

    def warm(self) -> None:
        """Read ahead what is known, in threads."""
        for root, path in self._places.items():
            found, problem = lists.load(path)
            if found is not None:
                self._lists[root] = found
            if problem:
                self._problems.append(problem)
        if self._lists:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def _read(self) -> None:
        began_s = self._clock()
        for root, hot in self._lists.items():
            self._warmed_bytes += lists.warm_files(root, hot, width=HOT_WIDTH, stop=self._stop)
        self._warmed_s = self._clock() - began_s

    def arm(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for the worker that notes what it opens; {} where it cannot."""
        try:
            create(self._notes)
        except OSError as error:
            self._problems.append(f"{self._notes}: {error.strerror}: nothing is recorded")
            return {}
        return arm_environment(env, self._notes, lists.spellings(self._roots), self._window_s)

    def finish(self, workers: Sequence[int] = (), *, keep: bool = True) -> EnvironmentReport:
        """Stop warming, merge what was opened (not where `keep` is false: the start failed), and say what it brought."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)
        mapped = [path for pid in workers for path in mapped_files(pid)]
        at_ms = int((self._clock() - self._began_s) * 1000)
        listed = opened = hits = 0
        for root, path in self._places.items():
            recordings = lists.noted([self._notes] if os.path.exists(self._notes) else [], root, mapped, at_ms=at_ms)
            files = {file for recording in recordings for file in recording}
            known = {file.path for file in self._lists[root].files} if root in self._lists else set()
            listed, opened, hits = listed + len(known), opened + len(files), hits + len(files & known)
            if keep:
                try:
                    lists.record(path, recordings)
                except OSError as error:
                    self._problems.append(f"{path}: {error.strerror}: what this start opened is not kept")
        return EnvironmentReport(
            listed=listed,
            opened=opened,
            hit_rate=round(hits / opened, 4) if listed and opened else None,
            warmed_bytes=self._warmed_bytes,
            warmed_s=round(self._warmed_s, 3),
            problems=tuple(self._problems),
        )
