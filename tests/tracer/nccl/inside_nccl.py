"""A program that has a real NCCL load the plugin and tell it of proxy operations, without a GPU. Prints what NCCL said as JSON.

NCCL's wheels keep the names of its inner functions (`.symtab`), and those that call profilers need no CUDA: only the structures
that they read, which are made up here. The layouts were read off `src/include/proxy.h`; 2.26 to 2.29 have them alike but for
the handles of steps. Usage: inside_nccl.py LIBRARY send|recv, with the variables of a rank (NCCL_PROFILER_PLUGIN,
ROBUST_NCCL_TRACE).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys

STEPS, MAX_SUBS = 8, 64
COMM_BYTES = 1 << 22  # a communicator is 1.2 MB
PROXY_PROGRESS_AT = 72  # of the sending half, in struct ncclTransport
MASK = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4
#: What NCCL calls the states of a step that goes all the way.
STATES = {"send": {3: (8, 9), 4: (8, 20, 9)}, "recv": {3: (10, 11, 12), 4: (10, 11, 12)}}


def sub_args(words_of_a_step: int) -> type[ctypes.Structure]:
    """Return struct ncclProxySubArgs of a version."""
    return type(
        "SubArgs",
        (ctypes.Structure,),
        {
            "_fields_": [
                ("connection", ctypes.c_void_p),
                ("reg", ctypes.c_int),
                ("handles_buffers_loops", ctypes.c_uint64 * 7),
                ("channel", ctypes.c_int),
                ("nsteps", ctypes.c_int),
                ("nbytes", ctypes.c_ssize_t),
                ("chunk", ctypes.c_ssize_t),
                ("peer", ctypes.c_int),
                ("one_rpn", ctypes.c_int),
                ("ring", ctypes.c_void_p),
                ("group", ctypes.c_int),
                ("counters", ctypes.c_uint64 * 7),
                ("buffer_ready", ctypes.c_int),
                ("requests", ctypes.c_void_p * STEPS),
                ("mask", ctypes.c_int),
                ("rank", ctypes.c_int),
                *([("profiler_steps", ctypes.c_uint64)] if words_of_a_step == 1 else []),
                ("pid", ctypes.c_int),
                ("context", ctypes.c_void_p),
                ("task", ctypes.c_void_p),
                ("op", ctypes.c_void_p),
                ("kernel", ctypes.c_void_p),
                ("steps", ctypes.c_void_p * (STEPS * words_of_a_step)),
                ("transferred", ctypes.c_size_t),
                ("work", ctypes.c_uint64),
                ("cache", ctypes.c_void_p * STEPS),
                ("cached", ctypes.c_int),
            ]
        },
    )


def args_of(sub: type[ctypes.Structure]) -> type[ctypes.Structure]:
    """Return struct ncclProxyArgs, as far as it is read."""
    fields = [
        ("subs", sub * MAX_SUBS),
        ("progress", ctypes.c_void_p),
        ("nsubs", ctypes.c_int),
        ("done", ctypes.c_int),
        ("one_ppn", ctypes.c_int),
        ("count", ctypes.c_uint64),
        ("slice_steps", ctypes.c_int),
        ("rest", ctypes.c_char * 4096),
    ]
    return type("Args", (ctypes.Structure,), {"_fields_": fields})


def symbols(path: str) -> dict[str, int]:
    """Return the values of all symbols of an ELF file."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at, size, count = (*struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58))
        sections = [struct.unpack_from("<IIQQQQIIQQ", content, at + size * number) for number in range(count)]
        found = {}
        for _, kind, _, _, start, length, link, *_ in sections:
            if kind == 2:
                texts = sections[link][4]
                for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", content[start : start + length]):
                    first = texts + name
                    found[content[first : content.find(b"\0", first)].decode()] = value
        return found


class Nccl:
    """The library, and its inner functions by name."""

    def __init__(self, path: str) -> None:
        self.symbols = symbols(path)
        self.library = ctypes.CDLL(path)
        exported = ctypes.cast(self.library.ncclGetVersion, ctypes.c_void_p).value
        assert exported is not None
        self.base = exported - self.symbols["ncclGetVersion"]

    def version(self) -> tuple[int, int, int]:
        """As the library says."""
        number = ctypes.c_int()
        assert self.library.ncclGetVersion(ctypes.byref(number)) == 0
        return number.value // 10000, number.value // 100 % 100, number.value % 100

    def call(self, mangled: str, *arguments: int) -> None:
        """Call a function that takes pointers and whole numbers and returns ncclSuccess."""
        kinds = [ctypes.c_void_p if argument > 1 << 31 else ctypes.c_int for argument in arguments]
        assert ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self.base + self.symbols[mangled])(*arguments) == 0, mangled


def main(path: str, direction: str) -> None:
    """Make a communicator as far as profilers are told; one operation of four steps: two go all the way, the third is stuck."""
    nccl = Nccl(path)
    identity = ctypes.create_string_buffer(128)
    assert nccl.library.ncclGetUniqueId(identity) == 0  # reads the environment, as every job does first
    comm = ctypes.create_string_buffer(COMM_BYTES)
    nccl.call("_Z22ncclProfilerPluginInitP8ncclComm", ctypes.addressof(comm))
    contexts = [word for (word,) in struct.iter_unpack("<Q", comm.raw) if word]
    old = nccl.version() < (2, 27, 0)
    args = args_of(sub_args(1 if old else 2))()
    sub, at = args.subs[0], ctypes.addressof(args)
    sub.channel, sub.nsteps, sub.peer, sub.mask, sub.rank, sub.pid = 3, 4, 6, MASK, 5, os.getpid()
    sub.context, args.slice_steps, sub.transferred = contexts[0], 1, 1000
    if direction == "send":
        args.progress = ctypes.c_void_p.from_address(nccl.base + nccl.symbols["netTransport"] + PROXY_PROGRESS_AT).value
    way = direction.capitalize()
    op = (
        f"_Z33ncclProfilerStart{way}ProxyOpEventiP13ncclProxyArgs"
        if old
        else "_Z29ncclProfilerStartProxyOpEventiP13ncclProxyArgs"
    )
    nccl.call(op, 0, at)
    start = f"_Z35ncclProfilerStart{way}ProxyStepEventiP13ncclProxyArgsi"
    state = "_Z37ncclProfilerRecordProxyStepEventStateiP13ncclProxyArgsi24ncclProfilerEventState_t"
    states = STATES[direction][3 if old else 4]
    for step in range(3):
        nccl.call(start, 0, at, step)
        for number in states[: 1 if step == 2 else None]:
            nccl.call(state, 0, at, step, number)
        if step < 2:
            nccl.call("_Z30ncclProfilerStopProxyStepEventiP13ncclProxyArgsi", 0, at, step)
    print(json.dumps({"version": nccl.version(), "contexts": contexts}))
    sys.stdout.flush()
    if sys.stdin.readline() == "stop\n":
        nccl.call("_Z28ncclProfilerStopProxyOpEventiP13ncclProxyArgs", 0, at)
    nccl.call("_Z26ncclProfilerPluginFinalizeP8ncclComm", ctypes.addressof(comm))


if __name__ == "__main__":
    main(*sys.argv[1:])
