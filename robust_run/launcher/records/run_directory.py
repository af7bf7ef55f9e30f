"""The run directory: every file a job leaves, and where it is.

<log dir>/<run id>/
    .gitignore                          keeps all this out of commits
    journal.jsonl                       what happened and what was done, a JSON object a line
    attempt_N/<rank>/stdout.log         everything the rank printed (stderr.log likewise)
    attempt_N/<rank>/error.json         written by torch's @record in the worker
    attempt_N/<rank>/damaged-*.json     what the rank found wrong with a checkpoint: see `ckpt_io.notes`
    attempt_N/<rank>/saved.json         the newest checkpoint that the rank has committed: see `ckpt_io.notes`
    attempt_N/<rank>/ring               its last communication calls and steps, where the attempt failed or the job is small
    attempt_N/<rank>/phases             what its newest steps consisted of on its GPU, beside the ring, where it has one
    incidents/0001.json                 one detected failure, its verdict and what was done
    incidents/0001.checks.json          what checks of the nodes measured after it, where the ladder wanted them
    incidents/0001.scene.json           what all ranks did, where the verdict rests on that
    incidents/0001.html                 its page, for people: see `report.pages`
    report.html                         the page of the job, once it is over
    code/                               versions of the job's code: see `records.code.tree_store`
    image/<host>.json                   how the start of a node from an image was (environment/: with --prefetch-env)
    setup/<host>.json                   which set-up its environment has: key, packages, how restored (<host>.log: the installers)
    setup/snapshot.json                 the job's snapshot, for nodes that come later and for a controller that resumes
    startup.json                        what each attempt's start was spent on, by phase and rank
    usage.json                          how full and busy nodes were, thinned with age, 1 MiB at most: see `report.usage`
    outcome                             a link that says how a job ended whose journal could not be told: see `outcome`
    store.log                           what the store's process printed, normally nothing
    controller.log                      what the controller's process printed, normally nothing
    api.json                            where the controller answers people: see `operator.reading.place`
    api.sock                            its Unix socket, where the path is short enough
    token                               the job's secret, for its owner alone
    token.read                          derived from it: may look at the job over HTTP, and do nothing

With several nodes, each has a run directory of this name; where they share the file system it is one, and ranks and nodes
never write the same file. What need not outlive the job is in memory: see `memory_folders`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.records.memory_folders import make_again, memory_folder, remove_tree, temporary_run
from robust_run.own_folder import check_run, check_way

_IGNORE = ".gitignore"

LONGEST_ID = 128
_ID = re.compile(r"[A-Za-z0-9._-]+")


def is_run_id(text: str) -> bool:
    """Whether a text is the name of a folder and of nothing else: no path, and not too long."""
    return _ID.fullmatch(text) is not None and text not in (".", "..") and len(text) <= LONGEST_ID


class RunDirectory:
    """Makes and names the files of one run. With `log_dir` None a temporary folder is used and removed at the end."""

    def __init__(self, path: str, memory: str, temporary: bool = False, guard: int = 0) -> None:
        self.path = path
        self.memory = memory
        """Folder for what workers map."""
        self.temporary = temporary
        self.guard = guard or os.getpid()
        """Pid of the process that removes what is left in memory when all others were killed."""

    @classmethod
    def create(cls, log_dir: str | None, run_id: str, guard: int = 0) -> RunDirectory:
        """Make the folder of a new run. Raises UserError if that is impossible or a run has it already.

        `guard` is the pid of the guard; 0: it is this process.
        """
        made = cls._make(log_dir, run_id, guard or os.getpid(), "choose another --log-dir")
        if os.path.exists(made.journal):
            remove_tree(made.memory if made.memory != made.path else None)
            raise UserError(f"the run directory {made.path!r} has the journal of a run: {_who_has(made)}")
        return made

    @classmethod
    def join(cls, log_dir: str | None, run_id: str, guard: int) -> RunDirectory:
        """Make the folder of a run that a controller named, or use it: on a shared file system it is there already.

        Raises UserError if it cannot be made, PlatformError for a run id that would lead elsewhere.
        """
        if not is_run_id(run_id):
            raise PlatformError(f"the controller calls the run {run_id[:80]!r}, which is no name for a folder")
        return cls._make(log_dir, run_id, guard, "choose a --log-dir that this node can write")

    @classmethod
    def _make(cls, log_dir: str | None, run_id: str, guard: int, next_step: str) -> RunDirectory:
        path = temporary_run(guard) if log_dir is None else os.path.join(log_dir, run_id)
        try:
            if log_dir is None:
                os.mkdir(path, 0o700)
            else:
                check_way(log_dir)
                os.makedirs(log_dir, exist_ok=True)
                _make_own(path, next_step)
        except OSError as error:
            raise UserError(f"cannot make the run directory {path!r}: {error.strerror}; {next_step}") from error
        if log_dir is not None:
            _keep_from_git(path)
        return cls(path, memory_folder(run_id, guard) or path, temporary=log_dir is None, guard=guard)

    @classmethod
    def resume(cls, path: str) -> RunDirectory:
        """Return the folder of a run that has a journal, for its next controller. Raises UserError if it has none.

        A controller has no workers, so nothing is kept in memory.
        """
        path = os.path.abspath(path)
        if not os.path.isfile(os.path.join(path, "journal.jsonl")):
            raise UserError(f"--resume {path!r}: no journal.jsonl there; give the run directory of a job")
        check_run(path, "continue it as its owner, or start the job anew")
        return cls(path, path)

    def for_controller(self) -> RunDirectory:
        """Return the same for a process without workers, which keeps nothing in memory."""
        if self.memory != self.path:
            remove_tree(self.memory)
        return RunDirectory(self.path, self.path, self.temporary, self.guard)

    @property
    def journal(self) -> str:
        """Path of the journal."""
        return os.path.join(self.path, "journal.jsonl")

    @property
    def code_start(self) -> str:
        """Path of what somebody else says that the job starts with (see `agent.code_versions.place`)."""
        return os.path.join(self.path, "code", "start.json")

    @property
    def store_log(self) -> str:
        """Path of what the store's process prints."""
        return os.path.join(self.path, "store.log")

    @property
    def controller_log(self) -> str:
        """Path of what the controller's process prints."""
        return os.path.join(self.path, "controller.log")

    @property
    def token(self) -> str:
        """Path of the job's secret (see `token.write_token`)."""
        return os.path.join(self.path, "token")

    def rank(self, attempt: int, rank: int) -> str:
        """Return the folder of one rank of one attempt."""
        return os.path.join(self.path, f"attempt_{attempt}", str(rank))

    def logs_of(self, attempt: int, rank: int) -> str | None:
        """Return the folder for the rank's output, None where logs are not kept."""
        return None if self.temporary else self.rank(attempt, rank)

    def error_file(self, attempt: int, rank: int) -> str:
        """Path torch's @record writes to."""
        return os.path.join(self.rank(attempt, rank), "error.json")

    def steps_file(self, attempt: int, rank: int) -> str:
        """Path of the step counter."""
        return os.path.join(self.memory, f"attempt_{attempt}-{rank}.steps")

    def reports(self, attempt: int) -> str:
        """Folder where the workers of an attempt report how training goes (`robust_run.report`)."""
        return os.path.join(self.memory, f"attempt_{attempt}-reports")

    def make_rank(self, attempt: int, rank: int) -> None:
        """Make the folders that a rank writes to. Raises OSError."""
        os.makedirs(self.rank(attempt, rank), exist_ok=True)
        if self.memory != self.path:
            make_again(self.memory)
        os.makedirs(self.reports(attempt), exist_ok=True)

    def modules_file(self, attempt: int, rank: int) -> str:
        """Path of the list of modules that a rank had imported by its first step, if it was asked for."""
        return f"{self.steps_file(attempt, rank)}.modules"

    @property
    def modules(self) -> str:
        """Path of the list of modules that warm processes of all nodes may import, as the node of rank 0 has found."""
        return os.path.join(self.path, "modules")

    def start_of(self, what: str) -> str:
        """Path of how the start of this node was: what of its image or environment was known, read ahead, waited for."""
        return os.path.join(self.path, what, f"{os.uname().nodename}.json")

    @property
    def snapshot(self) -> str:
        """Path of the manifest of the snapshot that the workers' environment is restored from."""
        return os.path.join(self.path, "setup", "snapshot.json")

    def incident(self, number: int) -> str:
        """Path of one incident."""
        return os.path.join(self.path, "incidents", f"{number:04d}.json")

    @property
    def startup(self) -> str:
        """Path of what starts were spent on (see `report.startup.types.Startup`)."""
        return os.path.join(self.path, "startup.json")

    @property
    def usage(self) -> str:
        """Path of how full and busy nodes were (see `report.usage.UsageHistory`)."""
        return os.path.join(self.path, "usage.json")

    def scene(self, number: int) -> str:
        """Path of what an incident was concluded from, where it was."""
        return os.path.join(self.path, "incidents", f"{number:04d}.scene.json")

    def checks(self, number: int) -> str:
        """Path of what checks after an incident measured, where there were any."""
        return os.path.join(self.path, "incidents", f"{number:04d}.checks.json")

    def ring_copy(self, attempt: int, rank: int) -> str:
        """Path of a copy of a rank's ring."""
        return os.path.join(self.rank(attempt, rank), "ring")

    def shown(self, path: str) -> str:
        """Return a path as a person would type it: relative to where they are, if that is shorter."""
        relative = os.path.relpath(path)
        return relative if len(relative) < len(path) else path

    def remove_unused(self) -> None:
        """Remove it where nothing was started: it holds what keeps it out of commits, and maybe an empty log."""
        with suppress(OSError):
            files = set(os.listdir(self.path))
            if files <= {_IGNORE, os.path.basename(self.store_log)} and not _has_content(self.store_log):
                for file in files:
                    os.unlink(os.path.join(self.path, file))
            os.rmdir(self.path)

    def remove_temporary(self) -> None:
        """Remove what was only of use while the job ran, and a run directory that was not asked for."""
        if self.memory != self.path:
            remove_tree(self.memory)
        if self.temporary:
            remove_tree(self.path)


def _has_content(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def steady_links(run_path: str) -> str:
    """Return where this node has links to the user's code and to what is kept of it."""
    return os.path.join(run_path, "code", "in-place", os.uname().nodename)


def _make_own(path: str, next_step: str) -> None:
    """Make a run directory, or check one that is there. Raises UserError, OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_run(path, next_step)
        if not os.path.isdir(path):  # a link to nowhere
            raise


def _keep_from_git(path: str) -> None:
    """Have `git add -A` pass a run directory over: it holds logs, copies of the code and the job's secret."""
    try:
        descriptor = os.open(os.path.join(path, _IGNORE), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # another node was faster, or this is a file system that has none
    with (
        suppress(OSError),
        os.fdopen(descriptor, "wb") as file,
    ):  # a full disk is told where the job's files are missing
        file.write(b"*\n")


def _who_has(taken: RunDirectory) -> str:
    """Return what to do about a run directory that has a journal already."""
    from robust_run.launcher.records.journal import is_claimed

    if is_claimed(taken.journal):
        return "another controller runs this job already; is --node-rank 0 given on two nodes?"
    if over := _how_it_ended(taken):
        return f"that job is over ({over}); another --run-id starts a new one"
    return f"robust-run --resume {taken.path} continues it, another --run-id starts a new one"


def _how_it_ended(taken: RunDirectory) -> str:
    """Return how the job of a run directory ended, as `--resume` knows it; empty if it did not, or that cannot be told."""
    from robust_run.launcher.records.journal import in_force
    from robust_run.launcher.records.journal_reading import read
    from robust_run.launcher.records.outcome import told

    try:
        _, entries = read(taken.journal)
    except (OSError, UserError):
        return ""
    finish = told(taken.path, list(in_force(entries)))
    return finish.outcome if finish is not None else ""
