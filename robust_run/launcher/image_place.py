"""The image of a job on one node: made before the first worker, entered by all of them, recorded until the first step, let go.

The agent's loop is never held up: what asks the block server runs in threads. Everything that goes wrong later is said, and
kept for the ranks that fail of it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.health.types import Finding
from robust_run.launcher.process_tree import children
from robust_run.launcher.read_ahead import Aside, write_report
from robust_run.launcher.types import ImageUse, JobSpec
from robust_run.prefetch import inside, window
from robust_run.prefetch.launch import Prepared
from robust_run.prefetch.record import Ended, keep
from robust_run.prefetch.server import control
from robust_run.signals import describe_exit

SIGBUS, SIGSEGV = 7, 11
_HOLDER = b"robust_run.prefetch.inside.holder"
#: Variables that would put a launcher inside a worker into an image again.
_OURS = ("ROBUST_IMAGE", "ROBUST_IMAGE_WRITABLE")
#: How long the last questions to a block server may hold up the end of a job.
_END_S = 10.0
_ASK_S = 10.0
#: How long an attempt waits for a place that is made anew.
ANEW_S = 30.0
#: How long after a trouble with the image an input error of a rank is taken to be of it.
TROUBLE_S = 120.0
_INPUT_ERRORS = ("Input/output error", "Bus error", "Transport endpoint is not connected", "Stale file handle")


def _is_holder(pid: int) -> bool:
    """Whether a child of ours holds an image, or is about to."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _HOLDER in file.read(4096)
    except OSError:
        return False


class ImagePlace:
    """One node's image. Made by `image_start.open_image`; used by the agent's thread, but for `trouble`.

    What its threads have to say is said when the agent looks, at the latest at the end.
    """

    def __init__(
        self,
        spec: JobSpec,
        image: ImageUse,
        prepared: Prepared,
        clock: Clock,
        say: Callable[[str], None],
        start: Callable[[Callable[[str], None]], inside.Inside],
    ) -> None:
        """`start` makes the place, given what hears of problems. Raises `ImageError`."""
        self.own = ""
        """Where this node gives blocks, HOST:PORT as others reach it; empty: nowhere."""
        self._peers: tuple[str, ...] = ()
        self._spec = spec
        self._image = image
        self._prepared = prepared
        self._clock = clock
        self._say = Aside(say)
        self._start = start
        self._cwd = os.getcwd()
        self._troubles: deque[tuple[float, str]] = deque(maxlen=8)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._anew: threading.Thread | None = None
        self._concluding: threading.Thread | None = None
        self._group_rank: int | None = None
        self._start_file = ""
        self._inside = start(self.trouble)
        self._window: window.Window | None = None
        """From the first attempt on: nodes may wait for each other before."""
        if spec.is_python and not self._python:
            self._inside.stop()
            raise PlatformError(
                f"--image {image.url}: there is no python3 on the PATH of the image; set PYTHON_EXEC to where it is"
            )

    @property
    def sentence(self) -> str:
        """How the image is mounted and what is fetched of it, for people."""
        return f"image {self._image.url}: {self._inside.ready.chosen}; {self._prepared.plan.why}"

    @property
    def block_port(self) -> int:
        """Where other nodes of the job get blocks; 0: nowhere. Raises `ImageError`."""
        if self._prepared.options.peers is None or not self._inside.ready.control_path:
            return 0
        status = self._inside.status()
        return status.peers.port if status is not None and status.peers is not None else 0

    def meet(self, peers: Sequence[str]) -> None:
        """Share blocks with these from now on, HOST:PORT each; this node is among them."""
        if len(peers) < 2 or not self.own or not self._inside.ready.control_path or tuple(peers) == self._peers:
            return
        self._peers = tuple(peers)
        path, own = self._inside.ready.control_path, self.own

        def tell() -> None:
            with suppress(RobustRunError):  # blocks then come from the origin
                control.ask(path, control.AskPeers(tuple(peers), own), control.Done, _ASK_S)

        threading.Thread(target=tell, daemon=True).start()

    # --- starting workers

    @property
    def _python(self) -> str:
        if os.environ.get("PYTHON_EXEC"):
            return self._spec.argv[0]
        ready = self._inside.ready
        # That of a virtual environment is a link to one of this machine, which nobody finds by looking at the image alone.
        return ready.python or (os.path.join(ready.mount_at, "bin", "python") if ready.mount_at else "")

    def program(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return a worker's command line as it is inside: with the image's Python in place of ours."""
        return (self._python, *argv[1:]) if self._spec.is_python else tuple(argv)

    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command line that runs a program inside; the process keeps its pid."""
        return tuple(self._inside.command(argv, self._cwd))

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what programs inside have in place of our environment."""
        return {name: value for name, value in self._inside.environment(env).items() if name not in _OURS}

    def begin(self, group_rank: int, start_file: str) -> bool:
        """An attempt is about to start here. Return whether the place is another one than before, which was lost.

        `start_file`: where it is written what the image's start brought. Raises PlatformError where none is made anew yet.
        """
        if self._group_rank is None:
            self._group_rank, self._start_file = group_rank, start_file
        if self._inside.reason and self._anew is None:
            self._begin_anew(self._inside)
        anew = self._anew
        if anew is not None:
            anew.join(ANEW_S if self._spec.many is None else 0.0)
            if anew.is_alive():
                raise PlatformError(f"image {self._image.url}: it was lost and is still being mounted again")
            self._anew = None
        if self._inside.reason:
            raise PlatformError(f"image {self._image.url}: {self._inside.reason}; it could not be mounted again")
        return anew is not None

    def pids(self) -> list[int]:
        """Return the process that holds the place; all that is below it belongs to it."""
        if self._is_stopping:
            return []
        is_starting = self._anew is not None and self._anew.is_alive()
        return [self._inside.pid, *(filter(_is_holder, children(os.getpid())) if is_starting else ())]

    # --- the window

    def look(self, *, stepped: bool) -> None:
        """Record until the first step; call now and then. `stepped`: an optimizer step was made here."""
        self._say.flush()
        ended = self._look(stepped=stepped)
        if ended is not None and self._inside.ready.control_path:
            self._concluding = threading.Thread(target=self._conclude, args=(ended,), daemon=True)
            self._concluding.start()

    def _look(self, *, stepped: bool, running: bool = True) -> Ended | None:
        now_s = self._clock.monotonic_s()
        self._window = self._window or window.Window(now_s, self._spec.record_window_s)
        return self._window.look(now_s, stepped=stepped, running=running)

    def _conclude(self, ended: Ended) -> None:
        try:
            recording, start = window.close(self._inside, self._prepared, ended)
            self._say(window.sentence(start))
            # One node of a job keeps what it read: the others read the same, and each would count as a launch.
            if self._prepared.plan.record and not self._group_rank:
                keep(self._prepared.store, self._prepared.key, [recording])
            if self._start_file:
                write_report(self._start_file, start, self._say)
        except RobustRunError as error:
            self._say(f"what the image's start read is not kept: {error}")

    # --- trouble

    def trouble(self, sentence: str) -> None:
        """Something went wrong with the image; from any thread."""
        with self._lock:
            self._troubles.append((self._clock.monotonic_s(), sentence))
        if self._is_stopping:
            return
        self._say(f"image {self._image.url}: {sentence}")
        # Its constructor may not have returned yet; then the loss shows when the first attempt begins.
        held: inside.Inside | None = getattr(self, "_inside", None)
        if held is not None and held.reason and self._anew is None:
            self._begin_anew(held)

    def _begin_anew(self, lost: inside.Inside) -> None:
        self._anew = threading.Thread(target=self._make_anew, args=(lost,), daemon=True)
        self._anew.start()

    def _make_anew(self, lost: inside.Inside) -> None:
        """Make the place again, for the next attempt: what runs in the old one cannot be helped."""
        try:
            made = self._start(self.trouble)
        except RobustRunError as error:
            self._say(f"image {self._image.url}: it cannot be mounted again: {error}")
            return
        with self._lock:
            if self._is_stopping:
                made.stop()
                return
            self._inside = made
            self._peers = ()
        lost.stop()

    def blame(self, finding: Finding | None, exit_code: int | None) -> Finding | None:
        """Return what a rank shows, with the image's trouble as the reason if it died of an input error after one."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            recent = [text for at_s, text in self._troubles if now_s - at_s <= TROUBLE_S]
        if not recent or exit_code in (0, None):
            return finding
        words = f"{finding.line} {finding.message}" if finding is not None else ""
        is_input = exit_code in (-SIGBUS, -SIGSEGV) or any(each in words for each in _INPUT_ERRORS)
        if not is_input:
            return finding
        shown = f"{finding.exception}: {finding.message}" if finding is not None and finding.exception else ""
        line = f"the image {self._image.url} failed: {recent[-1]}{f' ({shown.splitlines()[0]})' if shown else ''}"
        if finding is None:
            return Finding(kind="storage", line=line, excerpt=describe_exit(exit_code))
        return msgspec.structs.replace(finding, kind="storage", line=line, exception="", heals=True)

    # --- the end

    def stop(self, *, did_well: bool) -> None:
        """Let the place go, after the workers have ended. `did_well`: the job ended as it should."""
        # The end of a program that did what it should is the end of a whole start, if it has made no step.
        self._is_stopping = True
        ended = self._look(stepped=did_well, running=False)
        if ended is not None and self._inside.ready.control_path and not self._inside.reason:
            self._concluding = threading.Thread(target=self._conclude, args=(ended,), daemon=True)
            self._concluding.start()
        for thread in (self._concluding, self._anew):
            if thread is not None:
                thread.join(_END_S)
        self._say.flush()
        with self._lock:
            last = self._inside
        last.stop()
