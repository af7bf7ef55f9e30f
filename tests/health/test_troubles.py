"""What kind of trouble a worker's last words tell of: the rows `worker.*` of the rules go by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.output import classify, from_error_file
from robust_run.health.rules.book import load
from robust_run.health.rules.deciding import rule_of
from robust_run.health.troubles import trouble_of

HEAD = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    loss.backward()\n'

SAID = [
    ("illegal_memory_access", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("illegal_memory_access", "RuntimeError: CUDA error: device-side assert triggered"),
    ("illegal_memory_access", "RuntimeError: CUDA error: misaligned address"),
    ("ecc", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("ecc", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("gpu_lost", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("gpu_lost", "RuntimeError: No CUDA GPUs are available"),
    ("cuda", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    ("cuda", "RuntimeError: CUDA error: unknown error"),
    (
        "nccl",
        "torch.distributed.DistBackendError: NCCL error in: p.cpp:3356, unhandled system error, NCCL version 2.21.5",
    ),
    ("nccl", "RuntimeError: NCCL Error 3: internal error ncclInternalError: Internal check failed."),
    (
        "peer",
        "torch.distributed.DistBackendError: NCCL error in: p.cpp:1, ncclRemoteError: A call failed possibly due to",
    ),
    ("device_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
    ("device_memory", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("host_memory", "MemoryError"),
    ("host_memory", "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. "),
    ("host_memory", "OSError: [Errno 12] Cannot allocate memory"),
    ("storage", "OSError: [Errno 28] No space left on device: 'x.pt'"),
    ("storage", "OSError: [Errno 116] Stale file handle: '/data/x'"),
    ("nan", "ValueError: loss is nan at step 3"),
    ("nan", "RuntimeError: Loss is NaN, stopping training"),
    ("nan", "FloatingPointError: Gradient contains NaN"),
    ("nan", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    ("nan", "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication"),
    ("user_exception", "KeyError: 'nan'"),
    ("user_exception", "ValueError: the file banana.csv has no column loss"),
    ("user_exception", "TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
]


@pytest.mark.parametrize(("trouble", "line"), SAID, ids=[f"{trouble}-{at}" for at, (trouble, _) in enumerate(SAID)])
def test_an_exception_is_sorted_by_what_it_tells_of_and_keeps_the_line_that_decided(trouble: str, line: str) -> None:
    finding = classify(HEAD + line + "\n", 1)
    assert finding is not None
    assert finding.trouble == trouble
    assert finding.line == line.strip()


def test_the_error_file_is_sorted_like_stderr() -> None:
    finding = from_error_file(
        '{"message": {"message": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}}'
    )
    assert finding is not None
    assert finding.trouble == "ecc"


def test_a_report_of_c_plus_plus_is_sorted_by_what_it_says() -> None:
    text = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access "
        "was encountered\n"
    )
    finding = classify(text, -6)
    assert finding is not None
    assert finding.trouble == "illegal_memory_access"


def test_only_what_is_the_hardware_s_by_its_nature_evicts_and_an_illegal_memory_access_does_not() -> None:
    book = load("")
    evicting = {
        trouble
        for trouble in {trouble for trouble, _ in SAID}
        if (found := rule_of(book, f"worker.{trouble}")) is not None and found[1].rung == "evict"
    }
    assert evicting == {"ecc", "gpu_lost"}


def test_every_trouble_has_a_row() -> None:
    book = load("")
    assert all(rule_of(book, f"worker.{trouble}") is not None for trouble, _ in SAID)


@given(st.sampled_from(["exception", "accelerator", "out_of_memory", "storage"]), st.text(), st.text(max_size=20))
def test_any_text_has_a_trouble(kind: str, text: str, name: str) -> None:
    assert trouble_of(kind, name, text)  # type: ignore[arg-type]
