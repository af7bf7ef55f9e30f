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


GLOO = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 336 vs 184. Received data size doesn't match"
OTHER_SIZE = Finding(kind="native_crash", line=f"what():  {GLOO}", message=GLOO, trouble="mismatch")


def failed(rank: int, exit_code: int, at_s: float, finding: Finding | None = OTHER_SIZE) -> RankEvidence:
    return RankEvidence(
        rank=rank, pid=7, exit_code=exit_code, exited_at_s=at_s, signalled_at_s=None, finding=finding, steps=21
    )


def test_who_got_data_of_another_size_is_no_culprit_but_shows_that_calls_differ() -> None:
    lost = Finding(kind="peer_connection", line="Connection reset by peer", trouble="peer")
    found = attribute((failed(0, -6, 2.0), failed(1, 1, 2.1, lost), failed(2, -6, 2.2)))
    assert found is not None
    assert (found.kind, found.rule, found.confidence) == ("mismatch", "other_size", "low")
    assert found.ranks == found.over_evicted == (0, 2)
    assert found.sentence == (
        "ranks called different collectives: on ranks 0 and 2 gloo received data of another size than their calls expect "
        "(336 instead of 184 bytes) and ended them; no record tells which rank is wrong; that was after 21 steps of this attempt"
    )
    assert found.aftermath == "1 other rank failed after it"
    assert found.exit_code == 134


def test_an_exception_of_a_rank_s_own_goes_before_what_gloo_says_of_it_elsewhere() -> None:
    own = Finding(kind="exception", line="ValueError: x", exception="ValueError", message="x", trouble="user_exception")
    found = attribute((failed(0, -6, 2.0), failed(1, 1, 1.0, own)))
    assert found is not None
    assert (found.kind, found.ranks) == ("code", (1,))


def test_an_abort_for_another_reason_is_a_crash_for_sure() -> None:
    broken = Finding(kind="native_crash", line="double free or corruption (!prev)", trouble="native_crash")
    found = attribute((failed(0, -6, 2.0, broken),))
    assert found is not None
    assert (found.kind, found.rule, found.confidence, found.ranks) == ("crash", "died_of_signal", "high", (0,))
