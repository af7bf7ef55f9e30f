"""Who does not know the job's secret, or repeats what another said, is not heard; whatever arrives, nothing breaks."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.control.errors import ProtocolError
from robust_run.roles.queue_words import Item
from robust_run.roles.wire import Frames, OrchestratorHalf, WorkerHalf
from robust_run.roles.words import (
    MOST_FRAME_BYTES,
    UNPROVEN_FRAME_BYTES,
    Answer,
    Challenge,
    FromWorker,
    Hello,
    Me,
    Proof,
    ReadyCall,
    ToWorker,
)

SECRET = bytes(range(32))
ME = Me(role="rollout", index=3, rank=1, serial=2, attempt=0)


def met(secret: bytes = SECRET) -> tuple[Frames, Frames]:
    """Return both ends of a connection whose ends have proven themselves."""
    worker, orchestrator = WorkerHalf(secret, ME, "1"), OrchestratorHalf(SECRET)
    proof, key_in, key_out = worker.answer(orchestrator.challenge(worker.hello))
    ours, theirs = Frames(ToWorker), Frames(FromWorker)
    theirs.trust(*orchestrator.check(proof))
    ours.trust(key_in, key_out)
    return ours, theirs


def test_both_ends_understand_each_other() -> None:
    worker, orchestrator = met()
    orchestrator.feed(worker.frame(ReadyCall(number=1, address="a")) + worker.frame(ReadyCall(number=2)))
    assert [orchestrator.next(), orchestrator.next(), orchestrator.next()] == [
        ReadyCall(number=1, address="a"),
        ReadyCall(number=2),
        None,
    ]
    answer = Answer(number=1, items=(Item(5, 1, "k", b"payload"),))
    worker.feed(orchestrator.frame(answer))
    assert worker.next() == answer


def test_an_orchestrator_with_another_secret_is_not_told_anything() -> None:
    worker, other = WorkerHalf(SECRET, ME, "1"), OrchestratorHalf(bytes(32))
    with pytest.raises(ProtocolError, match="does not know this job's secret"):
        worker.answer(other.challenge(worker.hello))


def test_a_worker_with_another_secret_is_not_let_in() -> None:
    liar, orchestrator = WorkerHalf(bytes(32), ME, "1"), OrchestratorHalf(SECRET)
    challenge = orchestrator.challenge(liar.hello)
    forged = Challenge(
        nonce=challenge.nonce, proof=OrchestratorHalf(bytes(32), challenge.nonce).challenge(liar.hello).proof
    )
    proof, _, _ = liar.answer(forged)
    with pytest.raises(ProtocolError, match="a worker does not know this job's secret"):
        orchestrator.check(proof)


def test_a_proof_is_good_for_one_connection_and_for_who_made_it() -> None:
    worker, first = WorkerHalf(SECRET, ME, "1"), OrchestratorHalf(SECRET)
    proof, _, _ = worker.answer(first.challenge(worker.hello))
    second = OrchestratorHalf(SECRET)
    second.challenge(worker.hello)
    with pytest.raises(ProtocolError):
        second.check(proof)
    with pytest.raises(ProtocolError):
        first.check(msgspec.structs.replace(proof, me=msgspec.structs.replace(ME, rank=0)))
    with pytest.raises(ProtocolError):
        OrchestratorHalf(SECRET).check(proof)  # before any challenge


def test_an_orchestrator_cannot_be_made_to_prove_what_a_worker_has_to() -> None:
    worker, orchestrator = WorkerHalf(SECRET, ME, "1"), OrchestratorHalf(SECRET)
    challenge = orchestrator.challenge(worker.hello)
    with pytest.raises(ProtocolError):
        orchestrator.check(Proof(proof=challenge.proof, me=ME))


def test_another_protocol_is_told_what_to_install() -> None:
    with pytest.raises(ProtocolError, match=r"speaks protocol 2 of roles \(robust-run 9\).*install the same version"):
        OrchestratorHalf(SECRET).challenge(Hello(protocol=2, version="9", nonce=bytes(32)))
    with pytest.raises(ProtocolError, match="a nonce of 3 bytes"):
        OrchestratorHalf(SECRET).challenge(Hello(nonce=b"abc"))


def test_a_frame_that_was_changed_repeated_or_left_out_is_none() -> None:
    for change in ("flip", "repeat", "skip"):
        worker, orchestrator = met()
        frame = worker.frame(ReadyCall(number=1, address="here"))
        if change == "flip":
            frame = frame[:10] + bytes([frame[10] ^ 1]) + frame[11:]
        elif change == "repeat":
            frame += frame
        else:
            frame = worker.frame(ReadyCall(number=2))
        orchestrator.feed(frame)
        with pytest.raises(ProtocolError):
            assert orchestrator.next() == ReadyCall(number=1, address="here")
            orchestrator.next()


def test_a_frame_is_no_larger_than_allowed_before_and_after_the_proof() -> None:
    frames = Frames(FromWorker)
    frames.feed((UNPROVEN_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="a frame of 16385 bytes"):
        frames.next()
    _, orchestrator = met()
    orchestrator.feed((MOST_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="more than the"):
        orchestrator.next()
    with pytest.raises(ProtocolError, match="larger than a frame"):
        orchestrator.frame(Answer(number=1, items=(Item(1, 0, "", bytes(MOST_FRAME_BYTES)),)))


@given(st.binary(max_size=400), st.integers(1, 40))
def test_garbage_is_an_error_of_the_protocol_and_of_nothing_else(data: bytes, step: int) -> None:
    for frames in (Frames(FromWorker), met()[1]):
        try:
            for at in range(0, len(data), step):
                frames.feed(data[at : at + step])
                while frames.next() is not None:
                    pass
        except ProtocolError:
            pass


@given(
    st.dictionaries(
        st.sampled_from(("type", "proof", "me", "nonce", "number", "event", "numbers")),
        st.integers() | st.text(max_size=5) | st.none(),
    )
)
def test_maps_of_the_wrong_kind_are_too(content: dict[str, object]) -> None:
    try:
        payload = msgspec.msgpack.encode({**content, "type": content.get("type") or "proof"})
    except OverflowError:
        return
    frames = Frames(FromWorker)
    frames.feed(len(payload).to_bytes(4, "big") + payload)
    with suppress(ProtocolError):
        frames.next()
