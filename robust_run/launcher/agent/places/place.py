"""Container image or prepared environment that workers run in: made before the first worker, let go after the last.

`HeldPlace` is what images and set-ups have in common: what a start reads of them is recorded until the first step, and one that
is lost is made anew for the next attempt. The agent's loop is never held up: what asks a block server runs in threads. Everything
that goes wrong later is said, and kept for the ranks that fail of it.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.health.types import Finding
from robust_run.launcher.agent.places.made_place import Hears, MadePlace, is_holder
from robust_run.launcher.agent.places.opening import Opening
from robust_run.launcher.agent.places.start_recording import RecordedPart, StartRecording
from robust_run.launcher.agent.places.troubles import PlaceTroubles
from robust_run.launcher.agent.thread_messages import ThreadMessages
from robust_run.launcher.agent.workers.process_tree import children
from robust_run.launcher.model.job import JobSpec

if TYPE_CHECKING:
    from robust_run.launcher.agent.places.block_peers import Telling
    from robust_run.launcher.agent.places.read_ahead import Ahead
    from robust_run.prefetch.record import Ended
    from robust_run.prefetch.window import ImageStart

#: How long the last questions to a block server may hold up the end of a job.
_END_S = 10.0
#: How long an attempt waits for a place that is made anew.
ANEW_S = 30.0

MadeT = TypeVar("MadeT", bound=MadePlace)


class HeldPlace(ABC, Generic[MadeT]):
    """One node's place. Used by the agent's thread, but for `trouble`.

    What its threads have to say is said when the agent looks, at the latest at the end.
    """

    kind: Literal["image", "setup"]
    """Folder of the run directory that has how the start was."""
    where: str
    """For messages: "the image"."""
    uses: tuple[str, ...]
    """What advice on starts depends on (see `report.startup.advise`)."""
    has_our_torch = False
    """Whether the workers' torch and NCCL are those that this process would import."""
    snapshot = b""
    """Manifest of the set-up that it has, for other nodes of the job; empty: none, or its commands were run on each node."""
    library = ""
    """Folder inside from which robust_run of this machine can be imported where the place has none; empty: there is none."""

    def __init__(
        self,
        spec: JobSpec,
        name: str,
        clock: Clock,
        say: Callable[[str], None],
        start: Callable[[Hears], MadeT],
    ) -> None:
        """`name`: for messages, "image URL". `start` makes the place, given who hears of it; what it raises is raised."""
        self.own = ""
        """Where this node gives blocks, as others reach it (see `block_peers`); empty: nowhere."""
        self._peers: tuple[str, ...] = ()
        self._telling: Telling | None = None
        self.name = name
        self._spec = spec
        self._clock = clock
        self._say = ThreadMessages(say)
        self._start = start
        self._cwd = os.getcwd()
        self._troubles = PlaceTroubles(name, clock)
        self._recording = StartRecording(spec, self.where, clock, self._say)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._anew: threading.Thread | None = None
        self._anew_since_s = 0.0
        self._start_file = ""
        self._made: MadeT = start(Hears(self.trouble, self.note))

    @property
    @abstractmethod
    def sentence(self) -> str:
        """How it is made and what is fetched of it, for people."""

    @abstractmethod
    def program(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return a worker's command line as it is inside."""

    @abstractmethod
    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command line that runs a program inside; the process keeps its pid."""

    @abstractmethod
    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what programs inside have in place of our environment."""

    def moved(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return variables of a process inside, with what they name of this package as it is there."""
        return dict(env)

    @abstractmethod
    def report(self, path: str, start: ImageStart | None) -> None:
        """Write how the start was, as far as it is known; `start`: what was read of its image, once that is over."""

    @property
    def block_ports(self) -> tuple[int, ...]:
        """Where other nodes of the job get blocks; see `block_peers`. Raises `ControlFailed`."""
        made = self._made
        if self._spec.many is None or made.inside is None:
            return ()
        from robust_run.launcher.agent.places.block_peers import ports_of

        return ports_of(made.inside.ready)

    def meet(self, peers: Sequence[str]) -> None:
        """Share blocks with these from now on, see `block_peers`; where this node is not among them, it only gets some."""
        inside = self._made.inside
        if inside is None or not self.own or tuple(peers) == self._peers:
            return
        self._peers = tuple(peers)
        if self._telling is None:
            from robust_run.launcher.agent.places.block_peers import Telling

            self._telling = Telling()
        self._telling.tell(inside.ready, peers, self.own)

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces that workers run in: of mounts, then of users if there is one; empty: in ours."""
        return self._made.namespaces

    # --- starting workers

    def is_ready(self) -> bool:
        """Whether an attempt may begin, or be told why it cannot. False: one that was lost is being made anew, ask again soon.

        The agent's heartbeats go on meanwhile. So is one in which reads failed: the kernel's squashfs remembers the error, and
        fails them again when the store has long been back.
        """
        inside = self._made.inside
        is_spoilt = bool(self._made.reason) or (inside is not None and inside.has_lost_reads)
        if is_spoilt and self._anew is None:
            self._begin_anew(self._made)
        is_late = self._clock.monotonic_s() >= self._anew_since_s + ANEW_S
        return self._anew is None or not self._anew.is_alive() or is_late

    def begin(self, group_rank: int, store: str, start_file: str) -> bool:
        """An attempt is about to start here, see `is_ready`. Return whether the place is another one than before, which was lost.

        `store`: the address of the attempt's store, the same on all nodes. `start_file`: where it is written how the start was.
        Raises PlatformError where none is made anew yet.
        """
        if not self._start_file:
            self._start_file = start_file
            self._recording.begin(group_rank, store)
            self.report(start_file, None)
        elif self._made.inside is not None and not self._made.reason:
            self._made.inside.wait_anew()
        if self._made.reason and self._anew is None:
            self._begin_anew(self._made)
        anew = self._anew
        if anew is not None:
            if anew.is_alive():
                raise PlatformError(f"{self.name}: it was lost and is still being mounted again")
            self._anew = None
        if self._made.reason:
            raise PlatformError(f"{self.name}: {self._made.reason}; it could not be mounted again")
        return anew is not None

    def pids(self) -> list[int]:
        """Return the process that holds the place; all that is below it belongs to it."""
        if self._is_stopping:
            return []
        is_starting = self._anew is not None and self._anew.is_alive()
        held = [self._made.inside.pid] if self._made.inside is not None else []
        return [*held, *(filter(is_holder, children(os.getpid())) if is_starting else ())]

    # --- the window

    def look(self, *, stepped: bool) -> None:
        """Record until the first step; call now and then. `stepped`: an optimizer step was made here."""
        self._say.flush()
        self._conclude(self._look(stepped=stepped))

    def _look(self, *, stepped: bool, running: bool = True) -> Ended | None:
        return self._recording.look(stepped=stepped, running=running) if self._made.prepared is not None else None

    def _conclude(self, ended: Ended | None) -> None:
        if ended is not None:
            self._recording.conclude(self._recorded(self._made), ended)

    def _recorded(self, made: MadeT) -> list[RecordedPart]:
        """Return what of a place is recorded."""
        if made.prepared is None or made.inside is None:
            return []
        what = "set-up" if self.kind == "setup" else "image"
        return [RecordedPart(what, made.inside, made.prepared, self._report_start)]

    def _report_start(self, start: ImageStart) -> None:
        if self._start_file:
            self.report(self._start_file, start)

    # --- trouble

    def trouble(self, sentence: str) -> None:
        """Something went wrong with the place; from any thread."""
        self._troubles.add(sentence)
        if self._is_stopping:
            return
        self._say(f"{self.name}: {sentence}")
        # Its constructor may not have returned yet; then the loss shows when the first attempt begins.
        made: MadeT | None = getattr(self, "_made", None)
        if made is not None and made.reason and self._anew is None:
            self._begin_anew(made)

    def note(self, sentence: str) -> None:
        """Something is worth knowing; from any thread. It is said, and is never the reason of a failure."""
        self._say(f"{self.name}: {sentence}")

    def _begin_anew(self, lost: MadeT) -> None:
        self._anew_since_s = self._clock.monotonic_s()
        self._anew = threading.Thread(target=self._make_anew, args=(lost,), daemon=True)
        self._anew.start()

    def _make_anew(self, lost: MadeT) -> None:
        """Make the place again, for the next attempt: what runs in the old one cannot be helped."""
        try:
            made = self._start(Hears(self.trouble, self.note))
        except RobustRunError as error:
            self._say(f"{self.name}: it cannot be mounted again: {error}")
            return
        with self._lock:
            if self._is_stopping:
                made.stop()
                return
            self._made = made
            self._forget_peers()
        lost.stop()

    def _forget_peers(self) -> None:
        """Whom the lost place shared blocks with, the new one does not know."""
        self._peers = ()

    def blame(self, finding: Finding | None, exit_code: int | None) -> Finding | None:
        """Return what a rank shows, with the place's trouble as the reason if it died of an input error after one."""
        return self._troubles.blame(finding, exit_code)

    # --- the end

    def stop(self, *, did_well: bool) -> None:
        """Let the place go, after the workers have ended. `did_well`: the job ended as it should."""
        # The end of a program that did what it should is the end of a whole start, if it has made no step.
        self._is_stopping = True
        ended = self._look(stepped=did_well, running=False)
        if not self._made.reason:
            self._conclude(ended)
        for thread in (self._recording.concluding, self._anew):
            if thread is not None:
                thread.join(_END_S)
        self._say.flush()
        with self._lock:
            last = self._made
        with suppress(RobustRunError):
            last.stop()


AnyPlace = HeldPlace[Any]


class OpenedPlace(NamedTuple):
    """What became of a job's place on a node."""

    place: AnyPlace | None
    """Where workers run; None: they are in it already, because the whole job is."""
    ahead: Ahead | None
    """What reads it ahead then."""
    opening: Opening | None = None
    """How long that took."""
