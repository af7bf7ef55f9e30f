"""The run directory: every file a job leaves, and where it is.

<log dir>/<run id>/
    journal.jsonl                       what happened and what was done, a JSON object a line
    attempt_N/<rank>/stdout.log         everything the rank printed (stderr.log likewise)
    attempt_N/<rank>/error.json         written by torch's @record in the worker
    attempt_N/<rank>/steps              64 bytes: how many optimizer steps it has made
    incidents/0001.json                 one detected failure, its verdict and what was done
    store.log                           what the store's process printed, normally nothing
"""

from __future__ import annotations

import os

from robust_run.errors import UserError


class RunDirectory:
    """Makes and names the files of one run. With `log_dir` None a temporary folder is used and removed at the end."""

    def __init__(self, path: str, memory: str, temporary: bool = False) -> None:
        self.path = path
        self.memory = memory
        """Folder for what workers map."""
        self.temporary = temporary

    @classmethod
    def create(cls, log_dir: str | None, run_id: str) -> RunDirectory:
        """Make the folder. Raises UserError if that is impossible or another run has it."""
        if log_dir is None:
            import tempfile

            path = tempfile.mkdtemp(prefix="robust-run-")
            return cls(path, _memory_folder(run_id) or path, temporary=True)
        path = os.path.join(log_dir, run_id)
        try:
            os.makedirs(log_dir, exist_ok=True)
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {path!r}: {error.strerror}; choose another --log-dir"
            ) from error
        if os.path.exists(os.path.join(path, "journal.jsonl")):
            raise UserError(f"the run directory {path!r} belongs to another run; choose another --run-id or remove it")
        return cls(path, _memory_folder(run_id) or path)

    @property
    def journal(self) -> str:
        """Path of the journal."""
        return os.path.join(self.path, "journal.jsonl")

    @property
    def store_log(self) -> str:
        """Path of what the store's process prints."""
        return os.path.join(self.path, "store.log")

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

    def modules_file(self) -> str:
        """Path of the list of modules that rank 0 of the first attempt had imported before its first step."""
        return f"{self.steps_file(0, 0)}.modules"

    def incident(self, number: int) -> str:
        """Path of one incident."""
        return os.path.join(self.path, "incidents", f"{number:04d}.json")

    def shown(self, path: str) -> str:
        """Return a path as a person would type it: relative to where they are, if that is shorter."""
        relative = os.path.relpath(path)
        return relative if len(relative) < len(path) else path

    def remove_temporary(self) -> None:
        """Remove what was only of use while the job ran, and a run directory that nobody asked for."""
        import shutil

        if self.memory != self.path:
            shutil.rmtree(self.memory, ignore_errors=True)
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)


def _memory_folder(run_id: str) -> str | None:
    path = f"/dev/shm/robust-run-{run_id}-{os.getpid()}"  # noqa: S108 - made with mkdir, which follows no link, for us alone
    try:
        os.mkdir(path, mode=0o700)
    except OSError:
        return None
    return path
