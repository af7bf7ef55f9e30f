"""The line that says what a rank died of is short, whatever its program wrote."""

from __future__ import annotations

from robust_run.health.types import Finding
from robust_run.launcher.core.diagnosis.verdict import attribute
from robust_run.launcher.model.job import RankEvidence

#: As torch 2.11 writes it on a GPU that twelve processes share.
TOO_LITTLE = (
    "CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.23 GiB is free. "
    "Process 914 has 1.19 GiB memory in use. Process 915 has 1.19 GiB memory in use. Including non-PyTorch memory, this process "
    "has 1.18 GiB memory in use. Of the allocated memory 7.68 MiB is allocated by PyTorch."
)


def sentence_of(message: str, exception: str = "torch.OutOfMemoryError") -> str:
    finding = Finding(
        kind="out_of_memory", line=message, exception=exception, message=message, frame="train.py:9 in main"
    )
    rank = RankEvidence(
        rank=1, pid=7, exit_code=1, exited_at_s=2.0, signalled_at_s=None, spoke_at_s=1.5, finding=finding
    )
    found = attribute((rank,))
    assert found is not None
    return found.sentence


def test_too_little_gpu_memory_is_told_without_who_has_how_much() -> None:
    assert sentence_of(TOO_LITTLE) == (
        "rank 1 raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 1.23 GiB is free. (train.py:9 in main)"
    )


def test_what_a_program_says_of_its_processes_stays() -> None:
    assert "Process 3 has no data" in sentence_of("Process 3 has no data", "ValueError")
