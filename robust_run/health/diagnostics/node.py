"""The runner of one node, `python -m robust_run.health.diagnostics.node`: orders go in, lines of `Said` come out on stdout.

There is a `NodeOrder` on stdin; or, where its argument is a socket, as many as are handed over there (`handing`): it stays until
the other end is closed, and torch is imported once for all of them.

A process of its own, so that its parent (an agent, a command) has one child to watch and to end: with it ends all that it
started. SIGTERM ends everything at once; what was measured until then has been said.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.health.checks.types import Began, CheckProgramOrder, Ended, Finished, NodeOrder, Said
from robust_run.health.diagnostics.children import become_subreaper, child_environment, run_together, sweep
from robust_run.health.diagnostics.faults import VARIABLE as INJECTED
from robust_run.health.diagnostics.forked import Nursery, nursery_for
from robust_run.health.diagnostics.handing import handed, renumbered
from robust_run.health.diagnostics.nursery import WITH_TORCH
from robust_run.health.diagnostics.others import beside_all_below
from robust_run.health.diagnostics.program import MOST_ORDER_BYTES, die_with_parent, one_line


class _Told(BaseException):
    """We were told to end."""


def main() -> None:
    """Run all steps: exit code 0, 2 for a malformed order, 143 when told to end."""
    exit_code = 0
    try:
        order = read(sys.stdin.buffer.read(MOST_ORDER_BYTES + 1)) if not sys.argv[1:] else None
        become_subreaper()
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
        die_with_parent(signal.SIGTERM)
        env = child_environment(os.environ, os.getcwd())
        if order is not None:
            _carry_out(order, env, None)
        else:
            _stay(socket.socket(fileno=int(sys.argv[1])), env)
    except UserError as error:
        print(f"robust_run.health.diagnostics.node: {error}", file=sys.stderr)
        exit_code = 2
    except _Told:
        exit_code = 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    left = tuple(sweep())
    if exit_code != 2:
        say(Finished(left=left))
    sys.stdout.flush()
    os._exit(exit_code)


def read(data: bytes) -> NodeOrder:
    """Return the order. Raises UserError for a malformed one."""
    if len(data) > MOST_ORDER_BYTES:
        raise UserError(f"the order is longer than {MOST_ORDER_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=NodeOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"the order is malformed: {one_line(str(error))}") from error


def say(said: Said) -> None:
    """Write one line. A reader that is gone is no reason to leave processes behind."""
    data = msgspec.json.encode(said) + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass


def _stay(control: socket.socket, env: dict[str, str]) -> None:
    control.set_inheritable(False)
    nursery: Nursery | None = None
    while (found := handed(control, MOST_ORDER_BYTES + 1)) is not None:
        data, descriptors = found
        nursery = _carry_out(renumbered(read(data), descriptors), env, nursery)
        for each in descriptors.values():
            os.close(each)
        say(Finished(left=tuple(_sweep(nursery))))


def _carry_out(order: NodeOrder, env: dict[str, str], nursery: Nursery | None) -> Nursery | None:
    """Carry an order out; return what forks the programs of the next one, too."""
    checks = [each.check for step in order.steps for each in step]
    nursery = nursery or nursery_for([*checks, *order.to_come], env)
    for step in order.steps:
        _run(step, env, nursery)
        _sweep(nursery)
    return nursery


def _run(step: Sequence[CheckProgramOrder], env: dict[str, str], nursery: Nursery | None) -> None:
    first = step[0]
    devices = tuple(order.device for order in step)
    say(Began(check=first.check, devices=devices, round=first.round, limit_s=max(order.limit_s for order in step)))
    if nursery is not None and any(order.check in WITH_TORCH for order in step):
        nursery.get_ready()
    # A fault that a test injects is found beside other tests.
    others = None if INJECTED in env else beside_all_below(os.getpid())
    run_together(step, env, lambda result: say(Ended(result=result)), nursery, others)


def _sweep(nursery: Nursery | None) -> list[int]:
    return sweep(but=nursery.pids() if nursery is not None else ())


def _end(_number: int, _frame: object) -> None:
    raise _Told


if __name__ == "__main__":
    main()
