"""Records of a controller of several nodes: its journal, its book of incidents, and what they say of the time before it."""

from __future__ import annotations

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.last_word import say_goodbye
from robust_run.launcher.controller.leadership.hold import LeadershipHold
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import GONE_S, Journal
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import DRAIN_S, Console, drawing, telling
from robust_run.launcher.start.controller_past import Past

#: Of a manifest that is told to nodes that come later: it must fit into a frame of a greeting.
LARGEST_SNAPSHOT_BYTES = 900 << 10


class Lifetime:
    """How long a job has lived, of which this process has led the last part: the wall clock may have been set meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began_unix_s, self._began_s = clock, clock.unix_s(), clock.monotonic_s()

    def of_job_s(self, started_unix_s: float) -> float:
        """Return it, of a job that was started then; by another clock maybe, which counts for the time before this process."""
        return max(self._began_unix_s - started_unix_s, 0.0) + self._clock.monotonic_s() - self._began_s


class ControllerRecords:
    """What one controller keeps of its job."""

    def __init__(
        self, config: ControllerConfig, folders: RunDirectory, console: Console, clock: Clock, started_unix_s: float
    ) -> None:
        """Raises UserError if another controller keeps it."""
        self.started_unix_s = started_unix_s
        """When the job was started, as far as it is known."""
        self._config, self._run_directory, self._console, self._clock = config, folders, console, clock
        self._lifetime = Lifetime(clock)
        self.journal = Journal(folders.journal, clock, on_error=console.complain)
        if not config.campaigns and not self.journal.claim(GONE_S):
            raise UserError(
                f"the run in {config.run_path!r}: another controller runs this job already; robust status shows it. "
                "Is --node-rank 0 given on two nodes?"
            )
        tells = telling(config.spec, folders, clock, console)
        self.book = IncidentBook(clock, folders, console.say, console.complain, tells, drawing)

    async def past(self, hold: LeadershipHold, past: Past) -> JobState:
        """Return the state to continue from: what the journal says or, where it is not shared, what was saved."""
        if not self.journal.is_empty():  # it may have been lost before it began anything
            self.journal.end_torn_line()
            await past.finish()
        self.book.take_over(past.incidents)
        if past.began_at is not None:
            self.started_unix_s = past.began_at
        saved = await hold.load()
        return saved if saved is not None else past.state

    def snapshot(self) -> bytes | None:
        """Return the job's snapshot, as this node has restored it or the run directory says; None: it is too large to be told."""
        found = self._config.setup
        if self._config.spec.setup is not None and not found:
            try:
                with open(self._run_directory.snapshot, "rb") as file:
                    found = file.read(LARGEST_SNAPSHOT_BYTES + 1)
            except OSError:
                return b""
        return found if len(found) <= LARGEST_SNAPSHOT_BYTES else None

    def say_goodbye(self, finish: Finish, state: JobState, *, refused: int) -> None:
        """Say how the job ended, and have all of it on the disk. `refused`: agents that were not let in."""
        self.book.flush()
        lived_s = self._lifetime.of_job_s(self.started_unix_s)
        say_goodbye(
            self._console.say,
            self._run_directory,
            self.book,
            finish,
            state,
            lived_s,
            refused=refused,
            journal_problem=self.journal.problem,
        )
        self.journal.wait_durable(DRAIN_S)
        from robust_run.launcher.start.fleet_memory import is_trifle, leave_facts

        if not is_trifle(finish.outcome, lived_s, len(self.book.incidents)):
            leave_facts(self._run_directory, self._console.say)
