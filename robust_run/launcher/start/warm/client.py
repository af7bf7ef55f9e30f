"""`robust-run`'s side of a per-user warm process: finds one that fits, and lets it run the agent.

Where there is none, finding that out costs a look into a folder. Nothing that goes wrong here is an error: the job then
starts from nothing, and a line says why.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec

    from robust_run.launcher.model.job import JobSpec
    from robust_run.launcher.records.run_directory import RunDirectory
    from robust_run.launcher.start.warm.lease import FromWarmProcess
    from robust_run.launcher.start.warm.registry import WarmProcessFound

#: `off`, or how many seconds a warm process may take to answer.
VARIABLE = "ROBUST_WARM_DAEMON"
ANSWER_S = 0.5

#: How long the warm process may take to end what a dead agent left, and to say so after an orderly end.
BURIAL_S = 12.0
LAST_WORD_S = 0.5


class Offer:
    """What was found for one job."""

    def __init__(self, found: WarmProcessFound | None, note: str, answer_s: float) -> None:
        self.note = note
        """Why the job starts from nothing although a warm process runs; empty if there is nothing to say."""
        self._found = found
        self._answer_s = answer_s

    def hand_over(
        self, spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory, lifeline: int, mask: Iterable[int]
    ) -> DistantAgent | None:
        """Let the warm process run the job's agent. None: it does not, nothing of the job was begun, and `note` says why.

        `mask` is the signal mask for workers.
        """
        if self._found is None:
            return None
        name = f"the warm process (pid {self._found.pid})"
        try:
            connection = connect(self._found, self._answer_s)
            try:
                return _hand_over(connection, _take_job(spec, env, run_directory, mask), lifeline)
            except BaseException:
                connection.close()
                raise
        except TimeoutError:
            stopped = " because it is stopped" if is_stopped(self._found.pid) else ""
            self.note = f"{name} was not used: it did not answer within {self._answer_s:g} s{stopped}"
        except ConnectionError as error:
            self.note = f"{name} was not used: {error}"
        except (OSError, UnicodeError, ValueError) as error:
            self.note = f"{name} was not used: it could not be told the job ({error})"
        return None


NOTHING = Offer(None, "", 0.0)
"""Nobody looked."""


def look(spec: JobSpec, env: Mapping[str, str]) -> Offer:
    """Look for a warm process that the job may use. Costs next to nothing where there is none."""
    setting = env.get(VARIABLE, "")
    if setting == "off" or not spec.warm or not _is_announced(env):
        return Offer(None, "", 0.0)
    from robust_run.launcher.start.warm import registry

    found, distrusted = registry.find(env, os.getuid())
    if not found:
        return Offer(None, distrusted[0] if distrusted else "", 0.0)
    if reason := _why_never(spec, env):
        return Offer(None, f"the warm process (pid {found[0].pid}) was not used: {reason}", 0.0)
    ours = [each for each in found if each.announcement is not None]
    if not ours:
        other = f"it is of robust-run {found[0].version}"
        return Offer(None, f"the warm process (pid {found[0].pid}) was not used: {other}; start it anew", 0.0)
    from robust_run.launcher.start.warm import key, origins

    mine = origins.fingerprint(env, spec.preload, os.getcwd(), omp_threads_defaulted=spec.omp_threads_defaulted)
    fitting, note = key.closest([each.announcement for each in ours if each.announcement], mine)
    if fitting is None:
        return Offer(None, note, 0.0)
    if reason := origins.stale(fitting):
        return Offer(None, f"the warm process (pid {fitting.pid}) was not used: {reason}", 0.0)
    return Offer(next(each for each in ours if each.announcement is fitting), "", seconds(setting))


def _is_announced(env: Mapping[str, str]) -> bool:
    """Whether there is any folder to look into. The same folders as in `registry`, which is not imported for this."""
    runtime = env.get("XDG_RUNTIME_DIR")
    paths = (env.get("ROBUST_WARM_FOLDER"), f"{runtime}/robust-run" if runtime else None)
    return any(path and os.path.isdir(path) for path in (*paths, f"/tmp/robust-run-{os.getuid()}"))  # noqa: S108


def seconds(setting: str) -> float:
    """Return how long a warm process may take to answer, from what the user says of it."""
    try:
        return max(float(setting), 0.0)
    except ValueError:
        return ANSWER_S


def _why_never(spec: JobSpec, env: Mapping[str, str]) -> str:
    """Return why no fork can run this job's workers, whatever it is forked from."""
    from robust_run.launcher.agent.warm import ladder

    if env.get("ROBUST_JOB"):
        return "this is a job inside a job, and must end with it"
    if spec.ckpt_mount:
        return "workers run where checkpoints are mounted for them (--ckpt-mount)"
    return ladder.why_never(spec, sys.executable, env)


def is_stopped(pid: int) -> bool:
    """Whether a process does nothing because of a SIGSTOP."""
    from robust_run.launcher.agent.workers.process_tree import read_status

    status = read_status(pid)
    return status is not None and status.state in "Tt"


def connect(found: WarmProcessFound, answer_s: float) -> socket.socket:
    """Connect to a warm process. Raises OSError; ConnectionError if somebody else listens there."""
    from robust_run.launcher.agent.warm.messages import LARGEST_BYTES
    from robust_run.launcher.start.warm import registry, surroundings

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST_BYTES)
        connection.settimeout(answer_s)
        connection.connect(registry.path_of(found.folder, found.name, "sock"))
        if surroundings.peer(connection)[1] != os.getuid():
            raise ConnectionError("its socket belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def _take_job(
    spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory, mask: Iterable[int]
) -> msgspec.Struct:
    from robust_run.launcher.start.warm.key import PROTOCOL
    from robust_run.launcher.start.warm.lease import TakeJob
    from robust_run.version import __version__

    umask = os.umask(0)
    os.umask(umask)
    return TakeJob(
        protocol=PROTOCOL,
        version=__version__,
        spec=spec,
        env=dict(env),
        cwd=os.getcwd(),
        umask=umask,
        mask=tuple(sorted(mask)),
        command_line=tuple(sys.orig_argv),
        run_path=run_directory.path,
        run_memory=run_directory.memory,
        run_temporary=run_directory.temporary,
    )


def _hand_over(connection: socket.socket, job: msgspec.Struct, lifeline: int) -> DistantAgent:
    """Return the agent once it runs the job. Raises OSError before that, ConnectionError with a reason."""
    from robust_run.launcher.agent.warm.messages import send
    from robust_run.launcher.start.warm.lease import Go, WarmLeaseReady, WarmRefusal

    send(connection, job)
    match receive(connection):
        case WarmLeaseReady(pid=agent_pid):
            send(connection, Go(), (0, 1, 2, lifeline))
            return DistantAgent(connection, agent_pid)
        case WarmRefusal(reason=reason):
            raise ConnectionError(reason)
        case None:
            raise ConnectionError("it hung up")
        case news:
            raise ConnectionError(f"its answer was not expected: {news}")


def receive(connection: socket.socket) -> FromWarmProcess | None:
    """Return the next message, None if the other end is gone. Raises OSError."""
    import msgspec

    from robust_run.launcher.agent.warm.messages import LARGEST_BYTES
    from robust_run.launcher.start.warm.lease import FromWarmProcess

    data = connection.recv(LARGEST_BYTES)
    try:
        return msgspec.json.decode(data, type=FromWarmProcess) if data else None
    except msgspec.MsgspecError as error:
        raise ConnectionError(f"it uses another protocol ({error})") from error


class DistantAgent:
    """An agent that is no child of ours: the warm process is its parent."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection

    def wait(self) -> tuple[int, tuple[str, ...]]:
        """Wait until the job is over; return the agent's exit code as `subprocess` gives it, and what could not be ended.

        The agent says its exit code itself, so that it is known if the warm process is dead. The warm process says when
        nothing is left of the job, and if the agent was killed.
        """
        from robust_run.launcher.start.warm.lease import Buried, WarmAgentEnded

        exit_code: int | None = None
        watch = _Watch(self._connection, self.pid)
        while watch.wait():
            try:
                news = receive(self._connection)
            except OSError:
                break
            match news:
                case WarmAgentEnded():
                    exit_code = news.exit_code
                    watch.give_up_after(LAST_WORD_S)
                case Buried():
                    return news.exit_code, news.left
                case _:
                    break
        watch.close()
        return -9 if exit_code is None else exit_code, ()


class _Watch:
    """Waits for news of an agent, for ever while it lives, and not much longer."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        import select

        connection.settimeout(None)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._connection = connection
        self._give_up_at_s: float | None = None
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
            self._poll.register(self._pidfd, select.POLLIN)
        except (OSError, AttributeError):
            pass  # it is gone, or this kernel has none: then the connection alone tells

    def give_up_after(self, seconds: float) -> None:
        """Wait no longer than this from now on."""
        import time

        self._give_up_at_s = time.monotonic() + seconds

    def wait(self) -> bool:
        """Wait for a message or a hang-up; False: none came in time, although the agent is gone."""
        import time

        while True:
            left_s = None if self._give_up_at_s is None else self._give_up_at_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            ready = [descriptor for descriptor, _ in self._poll.poll(None if left_s is None else left_s * 1000)]
            if self._connection.fileno() in ready:
                return True
            if self._pidfd in ready:
                self.close()
                if self._give_up_at_s is None:
                    self.give_up_after(BURIAL_S)

    def close(self) -> None:
        """Look at the agent no more."""
        if self._pidfd >= 0:
            self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
