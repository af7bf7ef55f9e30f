"""Starting, finding and stopping the per-user warm processes of a node: what `robust warm` does."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.agent.warm import ladder, messages
from robust_run.launcher.agent.warm.identity import unarmed
from robust_run.launcher.agent.warm.messages import Preloaded, WarmStartRefused
from robust_run.launcher.agent.warm.start_up import start_environment
from robust_run.launcher.agent.workers.process_tree import read_status, send
from robust_run.launcher.start.warm import client, key, origins, registry
from robust_run.launcher.start.warm.lease import AskWarmStatus, Listening, WarmConfig, WarmStatus
from robust_run.process_start import started_at

_MAIN = "robust_run.launcher.start.warm.daemon:main"

#: Shown by `ps`. It never runs: a warm process stops before its program.
_PROGRAM = "raise SystemExit('a warm process of robust-run: see robust warm status')"

_ELSEWHERE = "a warm process of yours in another container, or outside of this one,"

#: How long a new one may import, an old one take to answer, and to end.
IMPORT_S = 600.0
ANSWER_S = 2.0
END_S = 10.0


class WarmStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A warm process that takes jobs."""

    pid: int
    modules: tuple[str, ...]
    took_s: float
    skipped: tuple[str, ...] = ()
    """Modules left out, each with its reason."""
    was_there: bool = False
    process: subprocess.Popen[bytes] | None = None
    """None if it was there."""


class WarmSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A warm process as `robust warm status` shows it."""

    pid: int
    version: str
    state: str
    """idle, running, stopped, silent, or what is wrong with it."""
    age_s: float | None = None
    idle_s: float | None = None
    idle_limit_s: float | None = None
    running: tuple[str, ...] = ()
    served: int | None = None
    memory_bytes: int | None = None
    """Its share of the memory it uses (PSS)."""
    executable: str = ""
    modules: tuple[str, ...] = ()
    omp_num_threads: str | None = None
    not_used: str = ""
    """Why jobs of several workers started here would not use it; empty if they would."""
    not_used_by_one_worker: str = ""
    """The same for jobs of one worker."""


def start(
    env: Mapping[str, str],
    modules: tuple[str, ...],
    idle_limit_s: float | None,
    *,
    one_worker: bool = False,
    foreground: bool = False,
) -> WarmStarted:
    """Start a warm process for jobs launched with this environment from the current folder, and wait until it takes jobs.

    One that runs already is left alone if it is up to date, and replaced if not. Raises UserError and PlatformError.
    """
    if tool := ladder.tool_that_forbids(env):
        raise UserError(f"no warm process can be started: {tool}; unset it")
    if not modules:
        raise UserError("--preload names no module: there is nothing to keep warm; leave it out for torch")
    env = unarmed(env)
    if not one_worker:
        env.setdefault("OMP_NUM_THREADS", "1")
    wanted = origins.fingerprint(env, modules, os.getcwd(), omp_threads_defaulted=False)
    folder, name = registry.make(env, os.getuid()), key.name_of(wanted)
    if len(os.fsencode(registry.path_of(folder, name, "sock"))) > registry.SOCKET_PATH_BYTES:
        raise UserError(f"the path of a socket in {folder} is too long; set {registry.VARIABLE} to a shorter folder")
    there = next((each for each in registry.find(env, os.getuid())[0] if each.name == name), None)
    if there is not None:
        if there.is_elsewhere:
            raise UserError(
                f"{_ELSEWHERE} holds the place in {there.folder}; set {registry.VARIABLE} to another folder"
            )
        if there.announcement is not None and not origins.stale(there.announcement):
            imported = there.announcement.fingerprint.preload
            return WarmStarted(pid=there.pid, modules=imported, took_s=0.0, was_there=True)
        stop(there.pid, registry.path_of(there.folder, there.name, "lock"))
    config = WarmConfig(
        folder=folder, name=name, fingerprint=wanted, idle_limit_s=idle_limit_s, ends_with_parent=foreground
    )
    return _launch(config, env, foreground)


def _launch(config: WarmConfig, env: Mapping[str, str], foreground: bool) -> WarmStarted:
    log_path = registry.path_of(config.folder, config.name, "log")
    ours, theirs = messages.packet_socketpair()
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        messages.send(ours, config)
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _PROGRAM],
            env={**env, **start_environment(env, _MAIN, (str(theirs.fileno()),))},
            cwd=config.fingerprint.folder or "/",
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=None if foreground else log,
            stderr=None if foreground else log,
            start_new_session=True,
        )
    except OSError as error:
        raise PlatformError(f"cannot start the warm process: {error}") from error
    finally:
        theirs.close()
        os.close(log)
    with ours:
        try:
            return _await_start(ours, process, log_path)
        except BaseException:
            process.kill()
            process.wait()
            raise


def _await_start(control: socket.socket, process: subprocess.Popen[bytes], log_path: str) -> WarmStarted:
    control.settimeout(IMPORT_S)
    preloaded = Preloaded(modules=(), took_s=0.0)
    while True:
        try:
            data = control.recv(messages.LARGEST_BYTES)
        except TimeoutError:
            raise PlatformError(
                f"the warm process has imported for {IMPORT_S:g} s without an end; see {log_path}"
            ) from None
        if not data:
            raise PlatformError(f"the warm process died while it started; see {log_path}{_last_line(log_path)}")
        match msgspec.json.decode(data, type=Preloaded | WarmStartRefused | Listening):
            case Preloaded() as preloaded:
                pass
            case WarmStartRefused(reason=reason, module=module):
                name = f"{module} cannot be preloaded: after it, " if module else ""
                raise UserError(f"no warm process: {name}{reason}{'; leave it out of --preload' if module else ''}")
            case Listening():
                return WarmStarted(
                    pid=process.pid,
                    modules=preloaded.modules,
                    took_s=preloaded.took_s,
                    skipped=preloaded.skipped,
                    process=process,
                )


def _last_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""


# --- status ---


def survey(env: Mapping[str, str]) -> list[WarmSeen]:
    """Return the warm processes of this user, oldest first."""
    found, _ = registry.find(env, os.getuid())
    return [_see(each, env) for each in found]


def _see(found: registry.WarmProcessFound, env: Mapping[str, str]) -> WarmSeen:
    theirs = found.announcement
    if theirs is None:
        reason = f"it is of robust-run {found.version}; stop it and start it anew"
        return WarmSeen(
            pid=found.pid,
            version=found.version,
            state="of another version",
            memory_bytes=_memory_bytes(found.pid),
            not_used=reason,
            not_used_by_one_worker=reason,
        )
    is_stopped = client.is_stopped(found.pid)
    status = None if is_stopped else _ask(found, max(ANSWER_S, client.seconds(env.get(client.VARIABLE, ""))))
    state = "running" if status and status.running else "idle" if status else "silent"
    return WarmSeen(
        pid=found.pid,
        version=found.version,
        state="stopped" if is_stopped else state,
        age_s=max(time.time() - theirs.started_unix_s, 0.0),
        idle_s=status.idle_s if status else None,
        idle_limit_s=theirs.idle_limit_s,
        running=status.running if status else (),
        served=status.served if status else None,
        memory_bytes=_memory_bytes(found.pid),
        executable=theirs.fingerprint.executable,
        modules=theirs.fingerprint.preload,
        omp_num_threads=theirs.fingerprint.variables.get("OMP_NUM_THREADS"),
        not_used=_why_not_used(theirs, status, env, several=True),
        not_used_by_one_worker=_why_not_used(theirs, status, env, several=False),
    )


def _why_not_used(theirs: key.Announcement, status: WarmStatus | None, env: Mapping[str, str], *, several: bool) -> str:
    defaulted = several and "OMP_NUM_THREADS" not in env
    mine = origins.fingerprint(env, theirs.fingerprint.preload[:1], os.getcwd(), omp_threads_defaulted=defaulted)
    return (
        key.difference(theirs.fingerprint, mine)
        or origins.stale(theirs)
        or ("it does not answer" if status is None else status.differs)
        or ladder.tool_that_forbids(env)
    )


def _ask(found: registry.WarmProcessFound, answer_s: float) -> WarmStatus | None:
    try:
        with client.connect(found, answer_s) as connection:
            messages.send(connection, AskWarmStatus())
            answer = client.receive(connection)
    except OSError:
        return None
    return answer if isinstance(answer, WarmStatus) else None


def _memory_bytes(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return None


# --- stop ---


def stop(pid: int, lock_path: str = "") -> bool:
    """End a warm process; True once it is gone, False if it takes no more jobs but waits for those that run.

    Jobs go on in either case. One that does not react is killed. `lock_path` is looked at to know that it takes no more.
    """
    began = started_at(pid)
    send(pid, signal.SIGTERM)
    send(pid, signal.SIGCONT)
    give_up_at_s = time.monotonic() + END_S
    while not _is_gone(pid) and started_at(pid) == began:  # else its number is another's by now
        if lock_path and registry.holder(lock_path) != pid and _has_agents(pid):
            return False
        if time.monotonic() > give_up_at_s:
            send(pid, signal.SIGKILL)
        select.select([], [], [], 0.005)
    return True


def _is_gone(pid: int) -> bool:
    status = read_status(pid)
    return status is None or status.is_gone


def _has_agents(pid: int) -> bool:
    from robust_run.launcher.agent.workers.process_tree import children

    return bool(children(pid))


def stop_found(env: Mapping[str, str], pids: tuple[int, ...], *, everyone: bool) -> list[tuple[int, bool]]:
    """Stop the warm processes with these pids, all of them, or the only one; return each pid and whether it is gone.

    Raises UserError for a pid that is none, and if it is not clear which one is meant.
    """
    found, _ = registry.find(env, os.getuid())
    there = {each.pid: each for each in found if not each.is_elsewhere}
    if found and not there and not pids:
        raise UserError(f"{_ELSEWHERE} can be stopped where it was started, not from here")
    if strangers := [pid for pid in pids if pid not in there]:
        raise UserError(f"process {strangers[0]} is no warm process of yours; see robust warm status")
    chosen = list(there) if everyone else list(pids)
    if not chosen and len(there) > 1:
        raise UserError(f"{len(there)} warm processes run; name one ({', '.join(map(str, there))}) or give --all")
    locks = {pid: registry.path_of(each.folder, each.name, "lock") for pid, each in there.items()}
    return [(pid, stop(pid, locks[pid])) for pid in dict.fromkeys(chosen or list(there))]
