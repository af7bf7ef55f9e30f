"""What kind of trouble a finding tells of, finer than its kind, for the rules (`worker.*`). Pure.

A trouble is a symptom. An illegal memory access says what happened on the device, not whether the device or the program did
wrong (two thirds were user code: ByteRobust, table 2); only ECC errors and lost GPUs are the hardware's by their nature.
"""

from __future__ import annotations

import re

from robust_run.health import other_size
from robust_run.health.types import FindingKind, Trouble

_MOST_CHARS = 5000

_LOST = re.compile(
    r"GPU (?:has fallen off the bus|is lost)|CUDA_ERROR_DEVICE_UNAVAILABLE|NVML_ERROR_GPU_IS_LOST|\bXid[^\n]{0,60}: 79\b"
    r"|No CUDA GPUs are available|CUDA-capable device\(s\) is/are busy or unavailable"
)
_ECC = re.compile(r"[Uu]ncorrectable (?:NVLink|ECC)|\bECC error|\bXid[^\n]{0,60}: (?:48|94|95|140)\b")
_ILLEGAL = re.compile(
    r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|an illegal instruction was encountered"
    r"|\bXid[^\n]{0,60}: (?:13|31)\b|[Dd]evice-side assert|unspecified launch failure"
)
_NCCL = re.compile(r"\bNCCL\b|nccl[A-Z]\w+|ProcessGroupNCCL")
_DEVICE_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError"
    r"|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_(?:INTERNAL_ERROR_)?(?:\w*_)?ALLOC_FAILED|[Ff]ailed to CUDA (?:c|m)alloc"
    r"|Tried to allocate [\d.]+ [KMG]iB(?:\. | \()"
)
_NAN = re.compile(
    r"\b[Ll]oss\b[^\n]{0,80}?\b(?:is|=|was|became|:)\s*['\"]?(?:nan|inf|not finite|non-?finite)\b"
    r"|\b(?:nan|inf|non-?finite)\b[^\n]{0,40}\b(?:loss|grad(?:ient)?s?|grad[_ ]norm)\b"
    r"|\b(?:loss|grad(?:ient)?s?|grad[_ ]?norm)\b[^\n]{0,40}\b(?:is|are|contains?|has|have|of)\s+(?:a )?"
    r"(?:nan|inf|non-?finite|not finite)"
    r"|returned nan values in its \d+\w* output|\bnan or inf\b[^\n]{0,60}\b(?:loss|grad|param|weight|activation|output)",
    re.IGNORECASE,
)


def trouble_of(kind: FindingKind, exception: str, text: str) -> Trouble:
    """Return the trouble that a finding of this kind tells of, by the exception's class and text (or the line that decided)."""
    said = f"{exception}: {text}"[:_MOST_CHARS]
    if kind == "usage":
        return "usage"
    if kind == "peer_connection":
        return "peer"
    if kind == "storage":
        return "storage"
    if kind in ("native_crash", "exception") and other_size.is_said_in(said):
        return "mismatch"
    if kind == "native_crash":
        return "native_crash"
    if kind == "out_of_memory":
        return "device_memory" if _DEVICE_MEMORY.search(said) else "host_memory"
    if kind == "accelerator":
        return _of_device(said)
    return "nan" if _NAN.search(text[:_MOST_CHARS]) else "user_exception"


def _of_device(said: str) -> Trouble:
    if _LOST.search(said):
        return "gpu_lost"
    if _ECC.search(said):
        return "ecc"
    if _ILLEGAL.search(said):
        return "illegal_memory_access"
    return "nccl" if _NCCL.search(said) else "cuda"
