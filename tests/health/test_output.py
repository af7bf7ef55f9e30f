"""What the end of a worker's stderr is taken for. The texts were printed by real programs; only paths are changed.

Those of CUDA and NCCL follow the well-known forms.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.health.output import MAX_EXCERPT_LINES, MAX_MESSAGE_CHARS, classify, from_error_file

VALUE = """\
Traceback (most recent call last):
  File "/home/u/proj/value.py", line 5, in <module>
    main()
  File "/home/u/proj/value.py", line 2, in load
    raise ValueError(f"bad header in {path}")
ValueError: bad header in a.bin
"""

RANK_THEN_ABORT = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/proj/d_raise.py", line 7, in <module>
[rank1]:     train()
[rank1]:   File "/home/u/proj/d_raise.py", line 4, in train
[rank1]:     if rank==1 and i==3: raise ValueError("loss is nan at step 3")
[rank1]:                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank1]: ValueError: loss is nan at step 3
terminate called without an active exception
"""

GLOO_CLOSED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/proj/d_raise.py", line 5, in train
[rank0]:     dist.all_reduce(torch.ones(4))
[rank0]:   File "/opt/venv/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer \
[127.0.0.1]:50352. This is typically caused by a remote worker crashing. Check the logs of the remote worker before \
reporting an error. GLHF! 🏖️
"""

GLOO_RESET = GLOO_CLOSED.replace(
    "Connection closed by peer [127", "Read error [127.0.0.1]:406: Connection reset by peer. [127"
)

GLOO_TIMEOUT = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/venv/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting \
2000ms for recv operation to complete
"""

STORE_WAIT = """\
[rank0]:[W1121 09:55:55.180074947 socket.cpp:469] [c10d] waitForInput: poll for socket SocketImpl(fd=3, \
addr=[::ffff:127.0.0.1]:53770, remote=[::ffff:127.0.0.1]:42265) returned 0, likely a timeout
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/proj/d_store.py", line 5, in <module>
[rank0]:     dist.distributed_c10d._get_default_store().wait(["never"])
[rank0]: torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//never
"""

STORE_GONE = """\
[W1121 10:23:28.203921051 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=7, \
addr=[::ffff:127.0.0.1]:51836, remote=[::ffff:127.0.0.1]:35017): Failed to recv, got 0 bytes. Connection was likely closed.
Exception raised from recvBytes at /__w/pytorch/torch/csrc/distributed/c10d/Utils.hpp:787 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fbdec979b8d in /opt/venv/torch/lib/libc10.so)
<omitting python frames>

Traceback (most recent call last):
  File "/home/u/proj/storegone.py", line 7, in <module>
    s.get("never")
torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server \
shutdown or crash?
"""

PORT_TAKEN = """\
Traceback (most recent call last):
  File "/home/u/proj/train.py", line 3, in <module>
    dist.init_process_group("gloo")
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, \
useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""

WRAPPED_PEER = (
    GLOO_CLOSED.replace("[rank0]", "[rank1]")
    + """
[rank1]: The above exception was the direct cause of the following exception:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/proj/wrapped.py", line 9, in <module>
[rank1]:     raise TrainError("step 7 failed") from e
[rank1]: TrainError: step 7 failed
"""
)

PEER_WHILE_HANDLING = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/proj/cleanup.py", line 6, in <module>
[rank1]:     raise ValueError("bad batch")
[rank1]: ValueError: bad batch

[rank1]: During handling of the above exception, another exception occurred:

""" + GLOO_CLOSED.replace("[rank0]", "[rank1]")

PEER_AFTER_LOOKUP = PEER_WHILE_HANDLING.replace("ValueError: bad batch", "KeyError: 'cached'")

CHAINED = """\
Traceback (most recent call last):
  File "/home/u/proj/chained.py", line 5, in read
    return {}["lr"]
           ~~^^^^^^
KeyError: 'lr'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/proj/chained.py", line 8, in <module>
    read()
  File "/home/u/proj/chained.py", line 7, in read
    raise ConfigError("no lr\\nlook at the config:\\n  lr: 3") from e
ConfigError: no lr
look at the config:
  lr: 3
"""

COLOURED = """\
Traceback (most recent call last):
  File \x1b[35m"/home/u/proj/chained.py"\x1b[0m, line \x1b[35m8\x1b[0m, in \x1b[35m<module>\x1b[0m
    \x1b[31mread\x1b[0m\x1b[1;31m()\x1b[0m
    \x1b[31m~~~~\x1b[0m\x1b[1;31m^^\x1b[0m
\x1b[1;35mConfigError\x1b[0m: \x1b[35mno lr\x1b[0m
"""

RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/u/proj/richy.py:4 in <module>                                          │
│                                                                              │
│ ❱ 4 f(1)                                                                     │
│                                                                              │
│ /home/u/proj/richy.py:3 in f                                                 │
│                                                                              │
│ ❱ 3 │   raise ValueError("boom in rich")                                     │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: boom in rich
"""

GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/u/proj/group.py", line 9, in <module>
  |     raise ExceptionGroup("many", errs)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/proj/group.py", line 2, in a
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/proj/group.py", line 4, in b
    |     raise OSError(28, "No space left on device", "/data/x")
    | OSError: [Errno 28] No space left on device: '/data/x'
    +------------------------------------
"""

NOTES = """\
Traceback (most recent call last):
  File "/home/u/proj/notes.py", line 2, in <module>
    raise e
ValueError: x
note one
note two
"""

DATA_WORKER = """\
Traceback (most recent call last):
  File "/home/u/proj/dl.py", line 9, in <module>
    for b in DataLoader(D(), num_workers=2, batch_size=2): pass
  File "/opt/venv/torch/_utils.py", line 794, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/u/proj/dl.py", line 6, in __getitem__
    if i==5: raise ValueError("bad sample 5")
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: bad sample 5

"""

DATA_WORKER_KILLED = """\
Traceback (most recent call last):
  File "/opt/venv/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 5615) is killed by signal: Killed.\x20

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/proj/dlkill.py", line 9, in <module>
    for b in DataLoader(D(), num_workers=2, batch_size=2): pass
  File "/opt/venv/torch/utils/data/dataloader.py", line 1304, in _try_get_data
    raise RuntimeError(
RuntimeError: DataLoader worker (pid(s) 5615) exited unexpectedly
"""

SPAWNED = """\
W1121 09:55:35.667000 5648 torch/multiprocessing/spawn.py:165] Terminating process 5651 via signal SIGTERM
Traceback (most recent call last):
  File "/opt/venv/torch/multiprocessing/spawn.py", line 211, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException:\x20

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/venv/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/home/u/proj/mp.py", line 3, in f
    raise ValueError("child")
ValueError: child

"""

POOL = '''\
concurrent.futures.process._RemoteTraceback:\x20
"""
Traceback (most recent call last):
  File "/opt/python/concurrent/futures/process.py", line 261, in _process_worker
    r = call_item.fn(*call_item.args, **call_item.kwargs)
  File "/home/u/proj/mpp.py", line 3, in f
    raise ValueError("child")
ValueError: child
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/proj/mpp.py", line 5, in <module>
    with c.ProcessPoolExecutor(1) as p: list(p.map(f,[1]))
  File "/opt/python/concurrent/futures/_base.py", line 401, in __get_result
    raise self._exception
ValueError: child
'''

THREAD = """\
Exception in thread loader:
Traceback (most recent call last):
  File "/opt/python/threading.py", line 982, in run
    self._target(*self._args, **self._kwargs)
  File "/home/u/proj/threads.py", line 3, in work
    raise RuntimeError("loader thread died")
RuntimeError: loader thread died
"""

THREAD_THEN_MAIN = (
    THREAD
    + """\
Traceback (most recent call last):
  File "/home/u/proj/threads.py", line 7, in train
    raise TimeoutError("no batch for 60 s")
TimeoutError: no batch for 60 s
"""
)

SYNTAX = """\
Traceback (most recent call last):
  File "/home/u/proj/syn.py", line 1, in <module>
    import syn_bad
  File "/home/u/proj/syn_bad.py", line 1
    def f(:
          ^
SyntaxError: invalid syntax
"""

SYNTAX_OF_SCRIPT = """\
  File "/home/u/proj/syn_bad.py", line 1
    def f(:
          ^
SyntaxError: invalid syntax
"""

LITERAL = """\
Traceback (most recent call last):
  File "/home/u/proj/data.py", line 9, in parse
    return ast.literal_eval(text)
  File "<unknown>", line 1
    {'a':\x20
         ^
SyntaxError: '{' was never closed
"""

DEEP = """\
Traceback (most recent call last):
  File "/home/u/proj/deep.py", line 2, in <module>
    f(0)
  File "/home/u/proj/deep.py", line 1, in f
    def f(n): return f(n+1)
                     ^^^^^^
  [Previous line repeated 996 more times]
RecursionError: maximum recursion depth exceeded
"""

SEGMENTATION_FAULT = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f381f7c2b80 (most recent call first):
  File "/opt/python/ctypes/__init__.py", line 519 in string_at
  File "/home/u/proj/segv.py", line 4 in crash
  File "/home/u/proj/segv.py", line 5 in <module>
"""

CPP_RUNTIME_ERROR = """\
terminate called after throwing an instance of 'std::runtime_error'
  what():  decoder queue is broken
"""

GLOO = "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
OTHER_SIZE = f"""\
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  {GLOO}op.preamble.length <= op.nbytes. 336 vs 184. Received data size doesn't match expected size. Is there a \
distributed collective mismatch in your code?
"""

CPP_BAD_ALLOC = """\
terminate called after throwing an instance of 'std::bad_alloc'
  what():  std::bad_alloc
Fatal Python error: Aborted

Current thread 0x00007f58d7e4eb80 (most recent call first):
  File "<string>", line 2 in <module>
"""

WATCHDOG = """\
[rank3]:[E1121 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=112, NumelOut=112, Timeout(ms)=600000) ran for 600011 milliseconds before \
timing out.
[rank3]:[E1121 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 0 Rank 3] Exception (either an error or timeout) \
detected by watchdog at work: 4, last enqueued NCCL work: 6, last completed NCCL work: 3.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] \
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 600011 milliseconds before \
timing out.
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:609 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f5a9616c1b6 in /opt/venv/torch/lib/libc10.so)
frame #1: clone + 0x43 (0x7f32572f2353 in /lib/x86_64-linux-gnu/libc.so.6)
"""

WATCHDOG_CUDA = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: CUDA error: an \
illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
"""

USAGE = """\
usage: train.py [-h] [--lr LR]
train.py: error: argument --lr: invalid float value: 'x'
"""

CLICK_USAGE = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.

Error: No such option: --lrr
"""

NO_FILE = "/opt/venv/bin/python: can't open file '/home/u/nofile.py': [Errno 2] No such file or directory\n"
NO_MODULE = "/opt/venv/bin/python: No module named no_mod\n"
NO_MODULE_INSIDE = """\
/opt/venv/bin/python: Error while finding module specification for 'os.foo' (ModuleNotFoundError: __path__ attribute not \
found on 'os' while trying to find 'os.foo')
"""


def raised(line: str, frame: str = "/home/u/train.py:9 in step") -> str:
    """A traceback that ends with this line."""
    file, _, rest = frame.partition(":")
    number, _, function = rest.partition(" in ")
    return f'Traceback (most recent call last):\n  File "{file}", line {number}, in {function}\n    go()\n{line}\n'


@pytest.mark.parametrize(
    ("text", "exit_code", "kind", "exception", "message", "frame"),
    [
        (VALUE, 1, "exception", "ValueError", "bad header in a.bin", "/home/u/proj/value.py:2 in load"),
        (RANK_THEN_ABORT, -6, "exception", "ValueError", "loss is nan", "/home/u/proj/d_raise.py:4 in train"),
        (CHAINED, 1, "exception", "ConfigError", "no lr\nlook at the config:\n  lr: 3", "chained.py:7 in read"),
        (COLOURED, 1, "exception", "ConfigError", "no lr", "/home/u/proj/chained.py:8 in <module>"),
        (RICH, 1, "exception", "ValueError", "boom in rich", "/home/u/proj/richy.py:3 in f"),
        (GROUP, 1, "exception", "ValueError", "one", "/home/u/proj/group.py:2 in a"),
        (NOTES, 1, "exception", "ValueError", "x\nnote one\nnote two", "notes.py:2 in <module>"),
        (DATA_WORKER, 1, "exception", "ValueError", "bad sample 5", "/home/u/proj/dl.py:6 in __getitem__"),
        (SPAWNED, 1, "exception", "ValueError", "child", "/home/u/proj/mp.py:3 in f"),
        (POOL, 1, "exception", "ValueError", "child", "/home/u/proj/mpp.py:3 in f"),
        (THREAD, 3, "exception", "RuntimeError", "loader thread died", "/home/u/proj/threads.py:3 in work"),
        (THREAD_THEN_MAIN, 1, "exception", "TimeoutError", "no batch for 60 s", "/home/u/proj/threads.py:7 in train"),
        (DEEP, 1, "exception", "RecursionError", "maximum recursion", "/home/u/proj/deep.py:1 in f"),
        (SYNTAX, 1, "exception", "SyntaxError", "invalid syntax", "/home/u/proj/syn_bad.py:1"),
        (SYNTAX_OF_SCRIPT, 1, "exception", "SyntaxError", "invalid syntax", "/home/u/proj/syn_bad.py:1"),
        (raised("AssertionError"), 1, "exception", "AssertionError", "", "/home/u/train.py:9 in step"),
        (
            PORT_TAKEN,
            1,
            "exception",
            "torch.distributed.DistNetworkError",
            "The server socket",
            "train.py:3 in <module>",
        ),
        (GLOO_CLOSED, 1, "peer_connection", "RuntimeError", "[/__w/", "distributed_c10d.py:3252 in all_reduce"),
        (GLOO_RESET, 1, "peer_connection", "RuntimeError", "[/__w/", "distributed_c10d.py:3252 in all_reduce"),
        (GLOO_TIMEOUT, 1, "peer_connection", "RuntimeError", "[/__w/", "distributed_c10d.py:3252 in all_reduce"),
        (
            STORE_WAIT,
            1,
            "peer_connection",
            "torch.distributed.DistStoreError",
            "wait timeout",
            "d_store.py:5 in <module>",
        ),
        (STORE_GONE, 1, "peer_connection", "torch.distributed.DistNetworkError", "Failed to recv", "storegone.py:7"),
        (WRAPPED_PEER, 1, "peer_connection", "TrainError", "step 7 failed", "/home/u/proj/wrapped.py:9 in <module>"),
        (PEER_WHILE_HANDLING, 1, "exception", "ValueError", "bad batch", "/home/u/proj/cleanup.py:6 in <module>"),
        (PEER_AFTER_LOOKUP, 1, "peer_connection", "RuntimeError", "[/__w/", "distributed_c10d.py:3252 in all_reduce"),
        (DATA_WORKER_KILLED, 1, "out_of_memory", "RuntimeError", "DataLoader worker", "dataloader.py:1304"),
        (SEGMENTATION_FAULT, -11, "native_crash", "", "Fatal Python error: Segmentation fault", ""),
        (CPP_RUNTIME_ERROR, -6, "native_crash", "", "decoder queue is broken", ""),
        ("double free or corruption (!prev)\n", -6, "native_crash", "", "double free or corruption (!prev)", ""),
        (CPP_BAD_ALLOC, -6, "out_of_memory", "", "std::bad_alloc", ""),
        (WATCHDOG, -6, "peer_connection", "", "[PG ID 0", ""),
        (WATCHDOG_CUDA, -6, "accelerator", "", "[PG ID 0", ""),
        (USAGE, 2, "usage", "", "", ""),
        (CLICK_USAGE, 2, "usage", "", "", ""),
        (NO_FILE, 2, "usage", "", "", ""),
        (NO_MODULE, 1, "usage", "", "", ""),
        (NO_MODULE_INSIDE, 1, "usage", "", "", ""),
    ],
)
def test_what_real_programs_print(
    text: str, exit_code: int, kind: str, exception: str, message: str, frame: str
) -> None:
    finding = classify(text, exit_code)
    assert finding is not None
    assert (finding.kind, finding.exception) == (kind, exception)
    assert finding.message.startswith(message)
    assert frame in finding.frame


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "accelerator"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", "accelerator"),
        ("RuntimeError: CUDA error: device-side assert triggered", "accelerator"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", "accelerator"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "accelerator"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "accelerator"),
        ("RuntimeError: No CUDA GPUs are available", "accelerator"),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, unhandled cuda error (run with "
            "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.",
            "accelerator",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, unhandled system error, NCCL version "
            "2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "accelerator",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, unhandled system error, NCCL version "
            "2.21.5\nncclSystemError: System call failed.\nLast error:\nsocketStartConnect: Connect to 10.0.0.1<5000> "
            "failed : Connection refused",
            "peer_connection",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, remote process exited or there was a "
            "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
            "process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 172.0.0.1<33759> failed",
            "peer_connection",
        ),
        ("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3.", "peer_connection"),
        ("RuntimeError: Connection reset by peer", "peer_connection"),
        ("RuntimeError: Broken pipe", "peer_connection"),
        ("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error", "peer_connection"),
        ("RuntimeError: [Rank 0] Ranks 1 failed to pass monitoredBarrier in 30000 ms", "peer_connection"),
        (
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
            "(node0, 29500). The client socket has failed to connect to [::ffff:10.0.0.1]:29500 (errno: 111).",
            "peer_connection",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 joined.",
            "peer_connection",
        ),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "exception"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "exception"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "exception"),
        ("OSError: [Errno 28] No space left on device", "storage"),
        ("OSError: [Errno 5] Input/output error: '/data/a.bin'", "storage"),
        ("OSError: [Errno 116] Stale file handle", "storage"),
        ("OSError: [Errno 30] Read-only file system: 'out.pt'", "storage"),
        ("TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs/a.bin'", "storage"),
        ("TimeoutError: [Errno 110] Connection timed out", "exception"),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/fuse/a.bin'", "storage"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/1: file "
            "write failed",
            "storage",
        ),
        ('botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://b/"', "storage"),
        (
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
            "storage",
        ),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded",
            "storage",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/nope/x'", "exception"),
        ("PermissionError: [Errno 13] Permission denied: '/root/x'", "exception"),
        ("ImportError: libfoo.so: cannot open shared object file: Stale file handle", "storage"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "out_of_memory"),
        ("RuntimeError: CUDA error: out of memory", "out_of_memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("MemoryError", "out_of_memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory"),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
            "out_of_memory",
        ),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit.",
            "out_of_memory",
        ),
        (
            "RuntimeError: unable to write to file </torch_123_456_0>: No space left on device (28)",
            "out_of_memory",
        ),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault. ", "native_crash"),
        ("ImportError: /lib/libgomp.so.1: cannot allocate memory in static TLS block", "exception"),
        ("ValueError: too many values to unpack (expected 2)", "exception"),
        ("__main__.Trainer.<locals>.Odd: strange", "exception"),
    ],
)
def test_what_the_words_of_an_exception_mean(line: str, kind: str) -> None:
    finding = classify(raised(line), 1)
    assert finding is not None
    assert finding.kind == kind
    assert finding.line == line.split("\n")[0].rstrip()
    assert finding.exception == line.partition(":")[0]


@pytest.mark.parametrize(
    ("text", "exit_code", "heals"),
    [
        (SYNTAX, 1, False),
        (raised("ModuleNotFoundError: No module named 'not_there'"), 1, False),
        (raised("robust_run.errors.UserError: there is nowhere to save to: give folder="), 1, False),
        (raised("robust_run.checkpoint.errors.StateRefused: the state cannot be saved: f: needs pickle"), 1, False),
        (raised("elsewhere.UserError: try again"), 1, True),
        (raised("ImportError: cannot import name 'x' from 'y'"), 1, False),
        (raised("NameError: name 'undefined_name' is not defined"), 1, False),
        (raised("UnboundLocalError: cannot access local variable 'x'"), 1, False),
        (USAGE, 2, False),
        (NO_FILE, 2, False),
        (NO_MODULE, 1, False),
        (LITERAL, 1, True),  # what was parsed is data: the next batch may do
        (raised("ImportError: libfoo.so: cannot open shared object file: Stale file handle"), 1, True),
        (NO_FILE.replace("[Errno 2] No such file or directory", "[Errno 116] Stale file handle"), 2, True),
        (VALUE, 1, True),
        (GLOO_CLOSED, 1, True),
        (SEGMENTATION_FAULT, -11, True),
    ],
)
def test_running_again_cannot_mend_a_wrong_program(text: str, exit_code: int, heals: bool) -> None:
    finding = classify(text, exit_code)
    assert finding is not None
    assert finding.heals is heals


WENT_ON = "".join(f"step {step} loss 2.{step}\n" for step in range(30))
LOGGED = "ERROR:root:retrying\n" + raised("KeyError: 'a'")
PROGRESS = "".join(f"\r{n:3}%|███   | {n}/100 [00:01<00:02, 10.00it/s]" for n in range(60))
CPP_NOISE = """\
[rank0]:[W1121 10:00:00.123456789 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before \
program exit, which can leak resources.
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f5a in /opt/venv/torch/lib/libc10.so)
/opt/python/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked objects
  warnings.warn('resource_tracker: There appear to be %d '
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "/opt/venv/torch/utils/data/dataloader.py", line 1600, in __del__
    self._shutdown_workers()
AssertionError: can only test a child process
wandb: Find logs at: ./wandb/run-1/logs
"""


@pytest.mark.parametrize(
    ("text", "exit_code", "exception"),
    [
        (VALUE, 0, None),  # it was caught: the program ended well
        (VALUE + WENT_ON, 1, "ValueError"),  # exit handlers may print at length
        (VALUE + WENT_ON, -9, None),  # caught, printed, and killed much later
        (VALUE + WENT_ON, 3, None),
        (VALUE + "saving state\nbye\n", -15, "ValueError"),  # hung at its end, and was told to go
        (VALUE + "saving state\n", None, "ValueError"),  # still going down
        (LOGGED, 1, "KeyError"),  # log.exception(); sys.exit(1)
        (LOGGED + WENT_ON, 1, None),
        (LOGGED + "step 1\nstep 2\nstep 3\nstep 4\n", -9, None),
        (VALUE + CPP_NOISE * 20, -6, "ValueError"),
        (PROGRESS + "\n" + VALUE + PROGRESS, -6, "ValueError"),
        (PROGRESS + VALUE, 1, "ValueError"),
        (VALUE + WENT_ON + raised("OSError: later"), 1, "OSError"),
        (VALUE.replace("\n", "\r\n"), 1, "ValueError"),  # a terminal's line ends
        (VALUE[:-40], 1, None),  # died while it printed
        (raised("KeyboardInterrupt"), -2, None),  # the signal says it
        (THREAD, None, None),
        (THREAD + WENT_ON, -9, None),
        (CPP_NOISE, 1, None),  # a destructor's trouble ends nothing
        (VALUE.partition("\n")[2], 1, "ValueError"),  # the beginning was cut off
        ("config not found: x.yaml\n", 1, None),
        ("", 1, None),
    ],
)
def test_a_traceback_counts_only_where_it_ended_the_program(
    text: str, exit_code: int | None, exception: str | None
) -> None:
    finding = classify(text, exit_code)
    assert (finding and finding.exception) == exception


def test_lines_of_others_inside_a_traceback_are_passed_over() -> None:
    lines = VALUE.split("\n")
    lines.insert(3, "step 12 of another thread")
    lines.insert(5, "[rank1]:[W1121 10:00:00.1 socket.cpp:1] some warning")
    finding = classify("\n".join(lines), 1)
    assert finding is not None
    assert (finding.exception, finding.frame) == ("ValueError", "/home/u/proj/value.py:2 in load")


def test_a_crash_of_a_child_long_ago_is_not_the_workers() -> None:
    assert classify(SEGMENTATION_FAULT + WENT_ON, 3) is None
    confirmed = classify(SEGMENTATION_FAULT + WENT_ON, -11)
    assert confirmed is not None
    assert confirmed.kind == "native_crash"


@pytest.mark.parametrize(
    ("text", "exit_code", "trouble"),
    [
        (OTHER_SIZE, -6, "mismatch"),
        # torch 2.6 to 2.8 say less of it.
        (OTHER_SIZE.replace("Received data size doesn't match expected size. Is there a distributed", ""), -6, "mismatch"),
        (f"Traceback (most recent call last):\n  File \"t.py\", line 9, in go\nRuntimeError: {OTHER_SIZE[71:]}", 1, "mismatch"),
        # So large that nobody has sent it: what came is no message of gloo's, or memory is broken.
        (OTHER_SIZE.replace("336 vs", "7310579611805417 vs"), -6, "native_crash"),
        (f"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  {GLOO}false. opcode", -6,
         "native_crash"),
        ("double free or corruption (!prev)\n", -6, "native_crash"),
        (CPP_RUNTIME_ERROR, -6, "native_crash"),
    ],
)  # fmt: skip
def test_that_gloo_got_another_size_is_no_crash_of_its_own(text: str, exit_code: int, trouble: str) -> None:
    finding = classify(text, exit_code)
    assert finding is not None
    assert finding.trouble == trouble


def test_a_known_trouble_needs_no_traceback() -> None:
    finding = classify("epoch 3\nfatal: write failed: No space left on device\ngiving up\n", 4)
    assert finding is not None
    assert (finding.kind, finding.line) == ("storage", "fatal: write failed: No space left on device")


def test_a_warning_of_a_connection_that_was_then_made_explains_no_kill() -> None:
    warning = "[c10d] The client socket has failed to connect to [::1]:29500 (errno: 111 - Connection refused).\n"
    assert classify(f"[W1121 10:00:00.1 socket.cpp:764] {warning}", 3) is None
    assert classify(warning, -9) is None
    gave_up = classify(warning, 3)
    assert gave_up is not None
    assert gave_up.kind == "peer_connection"


def test_the_excerpt_is_what_a_person_wants_to_read() -> None:
    finding = classify("step 1\n" + RANK_THEN_ABORT, 1)
    assert finding is not None
    assert finding.excerpt.split("\n")[0] == "Traceback (most recent call last):"
    assert finding.excerpt.split("\n")[-1] == "ValueError: loss is nan at step 3"
    assert "[rank1]" not in finding.excerpt


def test_long_things_are_cut_and_the_traceback_stays_visible() -> None:
    keys = "".join(f"\tMissing key {n}\n" for n in range(100))
    finding = classify(raised("RuntimeError: Error(s) in loading state_dict:\n" + keys), -15)
    assert finding is not None
    assert len(finding.message) == MAX_MESSAGE_CHARS
    assert 'File "/home/u/train.py"' in finding.excerpt
    frames = "".join(f'  File "/home/u/a.py", line {n}, in f{n}\n    f()\n' for n in range(100))
    finding = classify(f"Traceback (most recent call last):\n{frames}ValueError: deep\n", 1)
    assert finding is not None
    assert len(finding.excerpt.split("\n")) == MAX_EXCERPT_LINES
    assert finding.frame == "/home/u/a.py:99 in f99"


def test_the_same_failure_in_another_attempt_has_the_same_signature() -> None:
    one, other = classify(RANK_THEN_ABORT, 1), classify(RANK_THEN_ABORT.replace("step 3", "step 9"), -6)
    assert one is not None
    assert other is not None
    assert one.signature == other.signature
    assert one.signature != classify(VALUE, 1).signature  # type: ignore[union-attr]


def test_torchs_error_file_in_both_forms() -> None:
    callstack = raised("ValueError: boom", "/home/u/rec.py:4 in main")
    extra = {"py_callstack": callstack, "timestamp": "1795256538"}
    finding = from_error_file(json.dumps({"message": {"message": "ValueError: boom", "extraInfo": extra}}))
    assert finding is not None
    assert (finding.kind, finding.exception, finding.message) == ("exception", "ValueError", "boom")
    assert finding.frame == "/home/u/rec.py:4 in main"
    legacy = from_error_file(json.dumps({"message": "RuntimeError: CUDA out of memory", "timestamp": 1795256538}))
    assert legacy is not None
    assert (legacy.kind, legacy.exception, legacy.message) == ("out_of_memory", "RuntimeError", "CUDA out of memory")
    prose = from_error_file(json.dumps({"message": "Signal 11 (SIGSEGV) received by PID 7"}))
    assert prose is not None
    assert (prose.kind, prose.exception) == ("exception", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '{"message": 7}',
        '{"message": {}}',
        '{"message": ""}',
        "[" * 100_000,
        '{"other": "x"}',
    ],
)
def test_an_error_file_that_is_not_one_says_nothing(text: str) -> None:
    assert from_error_file(text) is None


SAMPLES = [
    (VALUE, 1),
    (CHAINED, 1),
    (GROUP, 1),
    (DATA_WORKER, 1),
    (POOL, 1),
    (GLOO_CLOSED, 1),
    (WRAPPED_PEER, 1),
    (DATA_WORKER_KILLED, 1),
    (WATCHDOG, -6),
    (USAGE, 2),
]


@pytest.mark.parametrize(("text", "exit_code"), SAMPLES)
@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: "".join(f"[rank12]: {line}\n" for line in text.split("\n")),
        lambda text: "".join(f"\x1b[1;31m{line}\x1b[0m\n" for line in text.split("\n")),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: WENT_ON + text,
        lambda text: PROGRESS + "\n" + text,
        lambda text: text + "\n" + "[rank0]:[W1121 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: not destroyed\n",
    ],
)
def test_noise_does_not_change_what_is_found(text: str, exit_code: int, disguise) -> None:
    plain, disguised = classify(text, exit_code), classify(disguise(text), exit_code)
    assert plain is not None
    assert disguised is not None
    assert (disguised.kind, disguised.frame, disguised.heals) == (plain.kind, plain.frame, plain.heals)


PIECES = st.sampled_from(
    [*(line for text, _ in SAMPLES for line in text.split("\n")), *RICH.split("\n"), "\x1b[", "\r", "\t", "NotAName:"]
)
EXIT_CODES = st.sampled_from([None, 1, 2, 127, 255, -6, -9, -15])


@settings(max_examples=300)
@given(st.lists(st.one_of(PIECES, st.text(max_size=40)), max_size=60), EXIT_CODES)
def test_no_text_breaks_it_and_what_it_says_is_bounded(pieces: list[str], exit_code: int | None) -> None:
    finding = classify("\n".join(pieces), exit_code)
    if finding is not None:
        assert "\n" not in finding.line
        assert len(finding.message) <= MAX_MESSAGE_CHARS
        assert len(finding.excerpt.split("\n")) <= MAX_EXCERPT_LINES


@settings(max_examples=200)
@given(st.binary(max_size=2000), EXIT_CODES)
def test_junk_explains_nothing_or_something_but_never_raises(junk: bytes, exit_code: int | None) -> None:
    classify(junk.decode("utf-8", errors="replace"), exit_code)
    from_error_file(junk.decode("utf-8", errors="replace"))
    assert classify(junk.decode("latin-1"), 0) is None


@pytest.mark.timeout(20)  # a quadratic search in one of these takes minutes
@pytest.mark.parametrize(
    "unit",
    [
        "\n",
        "\r",
        " ",
        "a",
        ":",
        "\x1b[",
        "\x1b]",
        "python: ",
        "x:1: ",
        "9%|",
        "Traceback (most recent call last):\n",
        '  File "a", line 1\n',
        "  + Exception Group Traceback (most recent call last):\n",
        "ValueError: x\nOriginal Traceback (most recent call last):\n",
        "Traceback (most recent call last):\nV: x\n\nDuring handling of the above exception, another exception occurred:\n\n",
        "Timed out waiting 1",
        "[Errno 110] ",
    ],
)
def test_every_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    text = (unit * (4 * 65536 // len(unit) + 1))[: 4 * 65536]
    for exit_code in (1, 2, -6, -9, None):
        finding = classify(text, exit_code)
        assert finding is None or finding.kind in ("exception", "peer_connection", "storage", "native_crash")


def test_an_error_line_counts_as_refused_arguments_only_below_a_usage_line() -> None:
    """`prog: error: cannot reach server` with exit code 2 may pass; arguments that were refused will not."""
    refused = classify("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n", 2)
    assert refused is not None
    assert (refused.kind, refused.heals) == ("usage", False)
    passing = classify("train.py: error: cannot reach server\n", 2)
    assert passing is None or passing.heals
