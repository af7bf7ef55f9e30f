"""Subject of a command: a job that answers, or what a dead one left. The commands do not care which."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.operator.reading.client import ApiTarget, NoAnswerError, reach, remote, this_machine
from robust_run.launcher.operator.reading.living import may_live
from robust_run.launcher.operator.reading.place import read_place
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, find_run, named_again, sole_live_run
from robust_run.launcher.operator.server.journal_pages import JournalPages
from robust_run.launcher.operator.views.life import JobLife, LifeSigns, life_of
from robust_run.launcher.operator.views.live import LiveView
from robust_run.launcher.operator.views.operations import OperatorWish
from robust_run.launcher.operator.views.status_types import EventsView, JobView, NodesView
from robust_run.report.types import Incident
from robust_run.tracer.types import Scene

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.dead import DeadJob
    from robust_run.launcher.operator.reading.incident_reading import IncidentsFound


_View = TypeVar("_View")

#: How long nodes may take to look at their ranks.
SCENE_S = 20.0

#: How long a job that was started this moment may take until it answers.
BEGIN_S = 3.0


class Subject:
    """A job to ask. Asking raises PlatformError or UserError."""

    def __init__(self, run_directory: str, target: ApiTarget | None, silence: NoAnswerError | None = None) -> None:
        self._run_directory = run_directory
        self._target = target
        self._silence = silence
        """Why no controller answers."""
        self._pages: JournalPages | None = None

    @property
    def is_alive(self) -> bool:
        """Whether a controller answered, so far."""
        return self._target is not None

    def job(self) -> tuple[JobView, bytes]:
        """Return its status, and that as JSON."""
        if self._target is not None:
            data = self._target.get("/v1/status")
            return _decoded(data, JobView), data
        dead = self._dead()
        job = dead.job(time.time(), self._life_of(dead))
        return job, msgspec.json.encode(job)

    def life(self) -> JobLife:
        """Return whether it lives, as far as that can be known here."""
        if self._target is not None:
            try:
                is_over = bool(self.job()[0].outcome)
            except NoAnswerError as error:  # it has ended since it was found, perhaps
                self._target, self._silence = None, error
            else:
                return life_of(LifeSigns(run_directory=self._run_directory, is_over=is_over, answers=True))
        return self._life_of(self._dead())

    def _life_of(self, dead: DeadJob) -> JobLife:
        from robust_run.launcher.operator.reading.life_signs import signs_of

        return life_of(signs_of(dead, self._run_directory, self._silence))

    def nodes(self) -> tuple[NodesView, bytes]:
        """Return its nodes, and that as JSON."""
        if self._target is not None:
            data = self._target.get("/v1/nodes")
            return _decoded(data, NodesView), data
        nodes = self._dead().nodes()
        return nodes, msgspec.json.encode(nodes)

    def live(self, first: int = 0, count: int = 100) -> LiveView:
        """Return what a user who watches is shown, with `count` nodes from place `first` on."""
        if self._target is not None:
            return _decoded(self._target.get("/v1/live", {"first": first, "count": count}), LiveView)
        from robust_run.launcher.operator.views.live import live_nodes, live_view

        rows = live_nodes(self.nodes()[0], {})
        found = self._found()
        view = live_view(self.job()[0], rows, found.incidents, first=first, count=count)
        said = found.words()
        return msgspec.structs.replace(view, findings=(*view.findings, said)) if said else view

    def incidents(self) -> tuple[Incident, ...]:
        """Return its incidents, oldest first."""
        if self._target is not None:
            return _decoded(self._target.get("/v1/incidents"), tuple[Incident, ...])
        return self._found().incidents

    def _found(self) -> IncidentsFound:
        from robust_run.launcher.operator.reading.incident_reading import read_incidents

        return read_incidents(self._run_directory)

    def scene(self, samples: int = 1) -> Scene:
        """Return what all ranks do now. Raises PlatformError where none runs, or no controller answers."""
        if self._target is None:
            why = f": {self._silence}" if self._silence is not None else ""
            left = "robust incident shows what was seen" if self.incidents() else "robust status says how it was left"
            raise PlatformError(f"no ranks run that can be looked at{why}; {left}")
        return _decoded(self._target.get("/v1/scene", {"samples": samples}, SCENE_S), Scene)

    def scene_of(self, number: int) -> Scene | None:
        """Return what an incident was concluded from, if that was kept and is on this machine."""
        from robust_run.report.files import incident as incident_file

        if not self._run_directory:
            return None
        try:
            return incident_file.read_scene(os.path.join(self._run_directory, "incidents", f"{number:04d}.scene.json"))
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def keep_traces(self) -> None:
        """Have a job that runs copy its ranks' rings to the run directory."""
        if self._target is not None:
            self._target.post("/v1/traces", OperatorWish())

    @property
    def folder(self) -> str:
        """The run directory; empty where only an address is known."""
        return self._run_directory

    def events(self, after: int, wait_s: float = 0.0) -> EventsView:
        """Return lines of the journal from this number on. When the controller goes, the run directory has the rest."""
        if self._target is not None:
            try:
                data = self._target.get("/v1/events", {"after": after, "wait": wait_s}, wait_s)
                return _decoded(data, EventsView)
            except NoAnswerError as error:
                self._target, self._silence = None, error
                if not self._run_directory:
                    raise
        path = os.path.join(self._run_directory, JOURNAL_NAME)
        try:
            if self._pages is None:
                _check(path)
                self._pages = JournalPages(path)
            self._pages.catch_up()
            return self._pages.page(after)
        except OSError as error:
            raise PlatformError(f"cannot read {path!r}: {error.strerror}") from error

    def doubt(self) -> str:
        """Say in a clause why its journal cannot show that nothing happened; empty: nothing speaks against it, as far as can be
        seen from here. Reads the whole journal.
        """
        from robust_run.launcher.operator.reading.journal_doubt import doubt_of

        return doubt_of(self._run_directory, is_written=self.is_alive) if self._run_directory else ""

    def _dead(self) -> DeadJob:
        from robust_run.launcher.operator.reading.dead import read_dead

        return read_dead(self._run_directory)


def _check(path: str) -> None:
    """Look at a journal's first line. Raises UserError for one that is none, and OSError."""
    from robust_run.launcher.operator.reading.journal_doubt import NOT_KNOWN
    from robust_run.launcher.records.journal_reading import LONGEST_LINE_BYTES, NoJournalError, header_of
    from robust_run.report.files import open_regular

    try:
        with open_regular(path) as file:
            header_of(file.readline(LONGEST_LINE_BYTES), path)
    except NoJournalError as error:
        raise NoJournalError(f"{error}, so {NOT_KNOWN}") from error


def subject(env: Mapping[str, str], *, run: str, log_dir: str, url: str, token_file: str, tls_ca: str) -> Subject:
    """Return the job the options name, dead or alive. Raises UserError, PlatformError."""
    if url:
        return Subject("", remote(url, token_file, tls_ca, env))
    path = find_run(run, log_dir, env)
    try:
        return Subject(path, _reach(path, token_file, tls_ca, env))
    except NoAnswerError as error:
        from robust_run.launcher.records.journal_reading import refuse_oversized

        refuse_oversized(os.path.join(path, JOURNAL_NAME))
        return Subject(path, None, error)


def controller(env: Mapping[str, str], *, run: str, log_dir: str, url: str, token_file: str, tls_ca: str) -> ApiTarget:
    """Return the way to the controller to act on. Raises UserError, PlatformError where none answers."""
    if url:
        return remote(url, token_file, tls_ca, env)

    def may_be_meant(runs: Sequence[str]) -> list[str]:
        live = may_live(runs, env, token_file=token_file, tls_ca=tls_ca)
        begun = [path for path in runs[:1] if path not in live and _has_just_begun(path, this_machine().host)]
        return begun + live

    path = sole_live_run(run, log_dir, env, may_be_meant)
    try:
        return _reach(path, token_file, tls_ca, env)
    except NoAnswerError as error:
        name, left = (
            os.path.basename(path),
            f"robust status {named_again(run, log_dir, path, env)} says how it was left",
        )
        if over := _how_it_ended(path, error):
            raise PlatformError(f"run {name!r} is over ({over}); {left}") from error
        hint = f"; {left}" if error.refused else ""
        raise PlatformError(f"run {name!r} cannot be told anything: {error}{hint}") from error


def _reach(path: str, token_file: str, tls_ca: str, env: Mapping[str, str]) -> ApiTarget:
    """Return the way to a run's controller. Raises NoAnswerError."""
    here = this_machine()
    return patiently(
        lambda: reach(path, token_file, tls_ca, env, here), lambda: _has_just_begun(path, here.host), SystemClock()
    )


def patiently(
    ask: Callable[[], ApiTarget],
    has_just_begun: Callable[[], bool],
    clock: Clock,
    sleep: Callable[[float], None] = time.sleep,
) -> ApiTarget:
    """Ask, and ask again while the job has only just begun: its first workers are started before it answers anybody.

    Raises NoAnswerError.
    """
    give_up_at_s = clock.monotonic_s() + BEGIN_S
    while True:
        try:
            return ask()
        except NoAnswerError:
            if clock.monotonic_s() >= give_up_at_s or not has_just_begun():
                raise
        sleep(0.05)


def _has_just_begun(path: str, host: str) -> bool:
    """Whether a controller on this host has begun its journal a moment ago, and serves nothing yet.

    A journal may be of months: of an old one no more than its beginning is read.
    """
    from robust_run.launcher.operator.reading.dead import read_dead
    from robust_run.launcher.operator.reading.life_signs import may_be

    try:
        if read_place(path) is not None:
            return False
        began_on, pid, started_unix_s = _beginning_of(os.path.join(path, JOURNAL_NAME))
        age_s = time.time() - (started_unix_s or time.time())
        if abs(age_s) >= BEGIN_S or began_on != host or not may_be(pid, started_unix_s):
            return False
        return read_dead(path).state.finish is None
    except (OSError, RobustRunError):
        return False


def _beginning_of(journal: str) -> tuple[str, int, float]:
    """Return who began a journal, its host and pid, and when; 0: it has no event yet. Raises OSError, UserError."""
    from robust_run.launcher.records.journal_reading import follow, refuse_oversized
    from robust_run.report.files import open_regular

    refuse_oversized(journal)
    with open_regular(journal) as file:
        header, entries = follow(file, journal)
        return header.host, header.pid, next((entry.at for entry in entries), 0.0)


def _how_it_ended(path: str, silence: NoAnswerError) -> str:
    """Return how a job ended that no controller answers for; empty if it did not, or its journal cannot be read."""
    from robust_run.launcher.operator.reading.dead import read_dead

    try:
        finish = read_dead(path).state.finish if silence.refused else None
    except RobustRunError:
        return ""
    return finish.outcome if finish is not None else ""


def _decoded(data: bytes, kind: type[_View]) -> _View:
    try:
        return json_decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise PlatformError(f"the controller's answer is of another version of robust-run: {error}") from error
