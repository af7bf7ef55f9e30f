"""Native threads of a rank: whether one of them may do something by itself, which no stack of Python shows. Pure.

A thread that C or C++ has made may call into the program later (a callback of ctypes, a timer of a library) and then
send, abort a group, or end the process. So a proof needs each of them to be harmless; few are:

- the threads of torch, gloo and CUDA, by the names that these give them: they do what was asked of them, and end no
  call before its time limit (RPC, which runs what others ask for, is told by the recorder);
- a thread that waits in a private futex without a time limit, as idle workers of OpenMP and BLAS do: only another
  thread of the same process can wake it, and of those none acts.

What sleeps, polls, reads, runs, or cannot be read may act. Versions of torch that do not name their threads prove
nothing here.
"""

from __future__ import annotations

from robust_run.tracer.wake.syscalls import (
    FUTEX_COMMAND,
    FUTEX_PRIVATE,
    FUTEX_WAIT,
    FUTEX_WAIT_BITSET,
    blocking_call,
)

_OF_TORCH = ("pt_autograd_", "pt_gloo_", "pt_nccl_", "pt_tcpstore", "pt_workerserver", "gloo_", "cuda")
_LIMIT = 3
"""Position of a futex's time limit among its arguments."""


def may_act(name: str, machine: str, number: int | None, arguments: tuple[int, ...], main_name: str = "") -> bool:
    """Whether a native thread may do something by itself: by its name, and by the call it is in (None: in none)."""
    if name.startswith(_OF_TORCH) and name != main_name:  # a thread without a name has that of the one that made it
        return False
    call = blocking_call(machine, number)
    if call is None or call.kind != "futex" or len(arguments) <= _LIMIT:
        return True
    operation = arguments[1]
    waits = operation & FUTEX_COMMAND in (FUTEX_WAIT, FUTEX_WAIT_BITSET)
    return not (waits and operation & FUTEX_PRIVATE and arguments[_LIMIT] == 0)
