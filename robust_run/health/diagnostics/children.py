"""Check programs as children: begun together, each killed at its limit, nothing of them left. For the runner alone.

The runner is a subreaper: all that a program starts becomes its child when that program ends, and is found there.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.health.checks.types import MOST_RESULT_BYTES, CheckProgramOrder, Result
from robust_run.health.diagnostics.forked import CheckProcess, Nursery
from robust_run.health.diagnostics.nursery import module_of
from robust_run.health.diagnostics.others import OthersWork
from robust_run.health.diagnostics.program import PARENT, blank, one_line
from robust_run.signals import describe_exit

PR_SET_CHILD_SUBREAPER = 36
#: How long a killed process may take to vanish before it is reported (uninterruptible sleep).
KILL_S = 10.0
#: How a program ends that was told to: a scheduler signals every process of a job that is over. No fault of a node is like it.
TOLD = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
#: Of a program's stderr, the end is kept.
TAIL_BYTES = 4096
#: What training set for its own processes, and what would make a check measure less than the node can do.
NOT_OURS = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR "
    "MASTER_PORT OMP_NUM_THREADS NCCL_PROFILER_PLUGIN TORCH_NCCL_ASYNC_ERROR_HANDLING"
).split()


def child_environment(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Return the environment of a check program, which runs in `/` so that no file of a user's folder is imported."""
    kept = {name: value for name, value in env.items() if name not in NOT_OURS and not name.startswith("TORCHELASTIC_")}
    if kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = ":".join(os.path.join(cwd, each) for each in kept["PYTHONPATH"].split(":") if each)
    return {**kept, "PYTHONSAFEPATH": "1"}


def become_subreaper() -> None:
    """Adopt orphans from now on."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def result_of(order: CheckProgramOrder, exit_code: int | None, answer: bytes, stderr_tail: bytes) -> Result:
    """Return the result of a program that ended (`exit_code`), or was killed at its limit (None). Pure."""
    last = [one_line(line) for line in stderr_tail.decode(errors="replace").splitlines() if line.strip()][-1:]
    if exit_code is None:
        also = f"; it last said: {last[0]}" if last else ""
        return blank(order, "hung", f"killed at its limit of {order.limit_s:g} s{also}")
    try:
        result = msgspec.json.decode(answer, type=Result)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        if exit_code in TOLD:
            return blank(order, "failed", f"somebody ended it: {describe_exit(exit_code)}")
        return blank(order, "crashed", f"{describe_exit(exit_code)}{': ' + last[0] if last else ''}")
    return msgspec.structs.replace(result, check=order.check, node=order.node, device=order.device, round=order.round)


class Child:
    """One running check program."""

    def __init__(self, order: CheckProgramOrder, env: Mapping[str, str], nursery: Nursery | None = None) -> None:
        self.order = order
        self.answer, self.tail = bytearray(), bytearray()
        said = os.memfd_create("order")  # not a pipe: a program that is stopped before it reads must not stop us
        with open(said, "w+b") as file:
            file.write(msgspec.json.encode(order))
            file.flush()
            file.seek(0)
            forked = nursery.fork(order, said) if nursery else None
            self.process: CheckProcess = forked or _start_from_nothing(order, env, said)
        self.ends_at_s = time.monotonic() + order.limit_s
        self.pidfd = os.pidfd_open(self.process.pid)

    def kill(self) -> None:
        """Kill it and its group."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Read what is left in its pipes, and close them."""
        for pipe, kept in ((self.process.stdout, self.answer), (self.process.stderr, self.tail)):
            assert pipe is not None
            while drain(pipe.fileno(), kept):
                pass
            pipe.close()
        os.close(self.pidfd)


def _start_from_nothing(order: CheckProgramOrder, env: Mapping[str, str], stdin: int) -> CheckProcess:
    return subprocess.Popen(
        [sys.executable, "-m", module_of(order.check)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**env, PARENT: str(os.getpid())},
        start_new_session=True,
        pass_fds=[order.meeting.listen_fd] if order.meeting and order.meeting.listen_fd >= 0 else [],
    )


def drain(descriptor: int, kept: bytearray) -> bool:
    """Read some of what is there without waiting; return whether there was anything. The tail is kept where it is long."""
    try:
        data = os.read(descriptor, 1 << 16)
    except OSError:
        return False
    kept += data
    if len(kept) > MOST_RESULT_BYTES:
        del kept[:-TAIL_BYTES]
    return bool(data)


def run_together(
    orders: Sequence[CheckProgramOrder],
    env: Mapping[str, str],
    tell: Callable[[Result], None],
    nursery: Nursery | None = None,
    others: OthersWork | None = None,
) -> None:
    """Run the programs of one step at the same time, and tell the result of each as it ends.

    `others`: the node's work for others, told with each result; None: it is not looked at.
    """
    running: list[Child] = []
    with selectors.DefaultSelector() as selector:
        try:
            for order in orders:
                child = _start(order, env, tell, nursery)
                if child is not None:
                    running.append(child)
                    _watch(selector, child)
            while running:
                timeout_s = max(min(child.ends_at_s for child in running) - time.monotonic(), 0)
                for key, _ in selector.select(min(timeout_s, 3600)):
                    if key.data is not None and not drain(key.fd, key.data):
                        selector.unregister(key.fd)
                for child in [each for each in running if _is_over(each)]:
                    running.remove(child)
                    tell(_with_others(_end(selector, child), others))
        finally:
            for child in running:
                child.kill()


def _start(
    order: CheckProgramOrder, env: Mapping[str, str], tell: Callable[[Result], None], nursery: Nursery | None
) -> Child | None:
    try:
        return Child(order, env, nursery)
    except OSError as error:
        tell(blank(order, "failed", f"the check program could not be started: {error.strerror}"))
        return None


def _watch(selector: selectors.BaseSelector, child: Child) -> None:
    for pipe, kept in ((child.process.stdout, child.answer), (child.process.stderr, child.tail)):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe.fileno(), selectors.EVENT_READ, kept)
    selector.register(child.pidfd, selectors.EVENT_READ, None)


def _is_over(child: Child) -> bool:
    return child.process.poll() is not None or time.monotonic() >= child.ends_at_s


def _end(selector: selectors.BaseSelector, child: Child) -> Result:
    exit_code = child.process.poll()
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.process.wait(KILL_S)
    assert child.process.stdout is not None and child.process.stderr is not None
    for descriptor in (child.process.stdout.fileno(), child.process.stderr.fileno(), child.pidfd):
        with suppress(KeyError, ValueError):
            selector.unregister(descriptor)
    child.close()
    return result_of(child.order, exit_code, bytes(child.answer), bytes(child.tail[-TAIL_BYTES:]))


def _with_others(result: Result, others: OthersWork | None) -> Result:
    if others is None:
        return result
    return msgspec.structs.replace(result, cpus=others.cpus, others_cpus=others.mean_cpus() or 0.0)


def sweep(but: Collection[int] = ()) -> list[int]:
    """Kill all processes below this one until none is left; return those that SIGKILL did not end in `KILL_S`."""
    give_up_at_s = time.monotonic() + KILL_S
    while found := [pid for pid in below(os.getpid()) if pid not in but]:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if time.monotonic() >= give_up_at_s:
            return found
        time.sleep(0.005)
    return []


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def below(root: int) -> list[int]:
    """Return all processes below one, as /proc shows them."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as file:
                parents.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
