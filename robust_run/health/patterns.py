"""What the words of an error mean: from an exception's class and text to the kind of its finding. Pure.

The order of the questions matters and is `kind_of`'s: an NCCL error may tell of a full device, of a broken device or of
a peer that went away, and a C++ report may quote any of them.
"""

from __future__ import annotations

import re

from robust_run.health.types import FindingKind

#: Of a longer text only this much of its start and of its end is looked at.
_START_CHARS, _END_CHARS = 4000, 1000

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|\b[Oo]ut of memory\b|can't allocate memory|std::bad_alloc|_ALLOC_FAILED|_ArrayMemoryError"
    r"|[Cc]annot allocate memory(?! in static TLS)|\[Errno 12\]|killed by signal: Killed|out of shared memory"
    r"|</torch_\d|[Ii]nsufficient shared memory"
)
_DEVICE = re.compile(
    r"\b(?:CUDA|HIP|cuDNN|cuBLAS|MPS|XPU) (?:driver |runtime |unknown |internal )?error\b|cuda runtime error"
    r"|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT|RAND)_STATUS_\w|illegal memory access|[Dd]evice-side assert"
    r"|ECC error|\bXid\b|GPU (?:has fallen|is lost)|No CUDA GPUs are available|no NVIDIA driver"
    r"|CUDA driver initialization failed|unspecified launch failure"
)
_PEER = re.compile(
    r"remote process exited or there was a network error|ncclRemoteError|NCCL communicator (?:was|has been) aborted"
    r"|Watchdog caught collective operation timeout|ProcessGroupNCCL's watchdog got stuck|monitored_?[Bb]arrier"
    r"|flight recorder dump signal from another rank|connectFullMesh failed|[Ff]ailed to recv, got 0 bytes"
    r"|Timed out waiting \d+ ?ms for (?:recv|send) operation|[Cc]lient socket has (?:failed|timed out)"
    r"|clients joined|another rank's failure"
)
#: Dist*Error are torch.distributed's own classes for a lost store or a lost peer.
_PEER_CLASS = re.compile(r"(?:^|\.)(?:DistStoreError|DistNetworkError)$")
#: Said of any socket: a peer is meant only where torch says it.
_SOCKET = re.compile(
    r"Connection (?:closed|reset) by peer|Connection closed by remote|closed by remote peer|Connection refused"
    r"|Connection timed out|Broken pipe|Socket [Tt]imeout|Socket [Cc]losed|No route to host|wait timeout after"
)
_TORCH_NETWORK = re.compile(r"\bgloo\b|/gloo/|\bc10d\b|TCPStore|\bNCCL\b|nccl[A-Z]|ProcessGroup")
#: The worker could not open its own socket or name its own host: no peer is to blame.
_OWN_SOCKET = re.compile(r"EADDRINUSE|[Aa]ddress already in use|server socket has failed|cannot be retrieved. err=")
_NCCL_LOCAL = re.compile(r"ncclSystemError|ncclUnhandledCudaError|ncclInternalError|unhandled (?:cuda|system) error")

#: EIO, ENXIO, ENODEV, ENOSPC, EROFS, ESTALE, EUCLEAN, EREMOTEIO, EDQUOT: no socket ever returns these.
_FILE_ERRNO = re.compile(r"\[Errno (?:5|6|19|28|30|116|117|121|122)\]")
#: EHOSTDOWN, ENOTCONN, ETIMEDOUT, ...: a file system's only where a path follows.
_NETWORK_ERRNO_OF_PATH = re.compile(r"\[Errno (?:103|104|107|110|111|112|113)\][^\n]{0,100}: b?['\"][^'\"\n]*/")
_FILE_WORDS = re.compile(
    r"No space left on device|Stale (?:NFS )?file handle|Read-only file system|Input/output error|Disk quota exceeded"
    r"|Structure needs cleaning|PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos"
    r"|Could not obtain block|No live datanodes|in safe ?mode|StandbyException|hdfs(?:BuilderConnect|Connect|OpenFile)"
    r"|HTTPS?ConnectionPool\("
    r"|An error occurred \((?:SlowDown|InternalError|ServiceUnavailable|RequestTimeout|50[0-9])\)"
)
_STORE_CLIENT = re.compile(
    r"^(?:botocore|aiobotocore|boto3|s3transfer|s3fs|gcsfs|fsspec|google|azure|hdfs|hdfs_native|urllib3|requests|aiohttp"
    r"|httpx|httpcore|huggingface_hub)\.[\w.]*"
    r"(?:Connect|Timeout|Timedout|Unavailable|Retry|Retries|Protocol|Transport|ServerError|ServiceRequest|Incomplete"
    r"|Payload|Disconnected|TooManyRequests|SSLError|HttpError)\w*$"
)
_CHILD_CRASHED = re.compile(r"killed by signal: (?:Segmentation fault|Aborted|Bus error|Illegal instruction)")

_CANNOT_HEAL = frozenset(
    (
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ImportError",
        "ModuleNotFoundError",
        "NameError",
        "UnboundLocalError",
    )
)
#: What `robust_run.checkpoint` and `ckpt_io` raise for what a program or its options say; its message tells what to change.
_OWN_REFUSALS = frozenset(("robust_run.errors.UserError", "robust_run.checkpoint.errors.StateRefused"))
#: Text that never was a file is data: another batch may parse.
_NOT_A_FILE = re.compile(r"^<(?:unknown|string)>")


def kind_of(exception: str, message: str) -> FindingKind:
    """Return what an exception of this class and text tells of; "exception" where it is the user's own.

    `exception` is empty for text that no Python exception carried (a log line, a C++ report).
    """
    text = (
        message if len(message) <= _START_CHARS + _END_CHARS else f"{message[:_START_CHARS]}\n{message[-_END_CHARS:]}"
    )
    name = exception.rpartition(".")[2]
    if name == "MemoryError" or _OUT_OF_MEMORY.search(name) or _OUT_OF_MEMORY.search(text):
        return "out_of_memory"
    if name == "AcceleratorError" or _DEVICE.search(text):
        return "accelerator"
    if _is_peer(exception, name, text):
        return "peer_connection"
    if _NCCL_LOCAL.search(text):
        return "accelerator"
    if _is_storage(exception, text):
        return "storage"
    if _CHILD_CRASHED.search(text):
        return "native_crash"
    return "exception"


def _is_peer(exception: str, name: str, text: str) -> bool:
    if _OWN_SOCKET.search(text):
        return False
    if _PEER_CLASS.search(exception) or _PEER.search(text):
        return True
    if not _SOCKET.search(text):
        return False
    # Python's own sockets raise ConnectionError and OSError; a RuntimeError comes from torch's C++.
    return name in ("RuntimeError", "DistBackendError", "DistError") or (
        exception == "" and _TORCH_NETWORK.search(text) is not None
    )


def _is_storage(exception: str, text: str) -> bool:
    patterns = (_FILE_ERRNO, _NETWORK_ERRNO_OF_PATH, _FILE_WORDS)
    return _STORE_CLIENT.search(exception) is not None or any(pattern.search(text) for pattern in patterns)


def can_heal(kind: FindingKind, exception: str, frame: str) -> bool:
    """Return whether running the same program again may help."""
    if kind == "usage" or exception in _OWN_REFUSALS:
        return False
    name = exception.rpartition(".")[2]
    return kind != "exception" or name not in _CANNOT_HEAL or _NOT_A_FILE.match(frame) is not None
