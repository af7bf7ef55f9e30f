"""The handshake without sockets: who is let in, what is said to whom is not, and what an eavesdropper cannot do."""

from __future__ import annotations

import msgspec
import pytest
from controllers import TOKEN, hello_of
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.control import frames, handshake
from robust_run.launcher.control.errors import JoinRefusal, NotController, ProtocolError, VersionMismatch, WrongToken
from robust_run.launcher.control.greeting import AgentHalf, ControllerHalf, TurnedAway
from robust_run.launcher.control.handshake import OURS, Speaks
from robust_run.launcher.control.messages import Challenge, Hello, JoinRefused, Welcome
from robust_run.launcher.model.events import AttemptEnded
from robust_run.launcher.model.job import Progress, RankEvidence

WELCOME = Welcome(term=1, run_id="run", rdzv_id="job", heartbeat_s=1.0, lease_s=3.0)
WHO = "gpu-3"
NEWER = Speaks(3, "0.9")


def controller(token: bytes = TOKEN, speaks: Speaks = OURS, channel: bytes = b"") -> ControllerHalf:
    return ControllerHalf(token, speaks, WHO, channel)


def agent(token: bytes = TOKEN, speaks: Speaks = OURS, channel: bytes = b"", hello: Hello | None = None) -> AgentHalf:
    return AgentHalf(token, speaks, hello or hello_of("n0"), "gpu-0:29400", channel)


def meet(one: ControllerHalf, other: AgentHalf, step: int = 1 << 20) -> None:
    """Carry bytes between the two, `step` at a time, until both are content."""

    def carry(data: bytes, to: ControllerHalf | AgentHalf) -> bytes:
        return b"".join(to.take(data[at : at + step]) for at in range(0, len(data), step))

    assert carry(one.opening(), other) == b""
    hello = carry(carry(other.opening(), one), other)
    assert carry(hello, one) == b""
    carry(one.welcome(WELCOME), other)


def payloads(data: bytes) -> list[bytes]:
    reader = frames.FrameReader(frames.LARGEST_FRAME_BYTES)
    reader.feed(data)
    return list(iter(reader.next, None))


# --- the first line


def test_the_first_line_says_protocol_and_version() -> None:
    assert handshake.first_line(Speaks(3, "1.2.3")) == b"robust-run 3 1.2.3\n"


@given(st.integers(1, 10**9 - 1), st.from_regex(r"[!-~]{1,64}", fullmatch=True), st.binary(max_size=50))
def test_what_one_side_says_the_other_reads_and_leaves_the_rest(protocol: int, version: str, rest: bytes) -> None:
    line = handshake.first_line(Speaks(protocol, version))
    assert handshake.read_first_line(line + rest) == (Speaks(protocol, version), len(line))


def test_half_a_line_needs_more() -> None:
    line = handshake.first_line(OURS)
    assert [handshake.read_first_line(line[:size]) for size in range(len(line))] == [None] * len(line)


def test_words_that_a_later_version_adds_are_ignored() -> None:
    assert handshake.read_first_line(b"robust-run 1 2.0 zstd quic\n") == (Speaks(1, "2.0"), 27)


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"robust-walk",
        b"robust-run one 1.0\n",
        b"robust-run 0 1.0\n",
        b"robust-run 1\n",
        b"robust-run 1 \x1b[2J\n",
        b"robust-run 1 " + b"9" * 100 + b"\n",
        b"robust-run " + b"1" * 200,
        b"robust-run 1 1.0" + b" " * 200 + b"\n",
    ],
)
def test_what_is_no_first_line_is_found_out_at_once(received: bytes) -> None:
    with pytest.raises(ProtocolError):
        handshake.read_first_line(received)


# --- both know the token


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_two_that_know_the_token_meet_however_slowly_bytes_arrive(step: int) -> None:
    one, other = controller(), agent()
    meet(one, other, step)
    assert one.hello is not None
    assert one.hello.node == hello_of("n0").node
    assert other.welcome is not None
    assert msgspec.structs.replace(other.welcome, proof=b"") == WELCOME


def test_events_too_many_for_a_stranger_come_along_with_the_hello() -> None:
    ranks = tuple(RankEvidence(rank=r, pid=r, exit_code=1, exited_at_s=0.5, stderr_tail="x" * 4096) for r in range(64))
    events = (AttemptEnded(attempt=0, started_at_s=0, ranks=ranks, progress=Progress()),)
    one, other = controller(), agent(hello=hello_of("n0", events=events))
    meet(one, other)
    assert one.hello is not None
    assert one.hello.events == events
    assert not one.hello.events_follow
    assert other.welcome is not None


def test_an_integer_where_a_float_belongs_is_no_forgery() -> None:
    one, other = controller(), agent(hello=msgspec.structs.replace(hello_of("n0"), now_s=3))
    meet(one, other)
    assert one.hello is not None
    assert one.hello.now_s == 3.0


def sealed(half: ControllerHalf | AgentHalf, payload: bytes) -> bytes:
    """Return a frame as a half sends it."""
    assert half.sealer is not None
    frame = frames.framed(payload)
    return frame + half.sealer.seal(frame)


def test_what_follows_the_handshake_is_not_lost() -> None:
    one, other = controller(), agent()
    other.take(one.opening())
    hello = other.take(one.take(other.opening()))
    one.take(hello + sealed(other, b"first") + sealed(other, b"second"))
    assert [one.reader.next(), one.reader.next(), one.reader.next()] == [b"first", b"second", None]
    other.take(one.welcome(WELCOME) + sealed(one, b"third"))
    assert other.reader.next() == b"third"


def test_what_was_not_sealed_with_keys_of_this_handshake_is_not_read() -> None:
    events = (AttemptEnded(attempt=0, started_at_s=0, ranks=(), progress=Progress()),)
    one, other = controller(), agent(hello=hello_of("n0", events=events))
    other.take(one.opening())
    hello, report = payloads_and_rest(other.take(one.take(other.opening())))
    with pytest.raises(TurnedAway, match="is not what the other end sent"):
        one.take(hello + report[:-1] + bytes((report[-1] ^ 1,)))
    assert one.hello is None


def payloads_and_rest(data: bytes) -> tuple[bytes, bytes]:
    """Return the first frame, and what follows it."""
    end = 4 + int.from_bytes(data[:4], "big")
    return data[:end], data[end:]


@pytest.mark.parametrize("is_forged", [False, True])
def test_an_agent_knows_a_refusal_of_who_has_the_token_from_one_that_anybody_can_send(is_forged: bool) -> None:
    one, other = controller(), agent()
    other.take(one.opening())
    one.take(other.take(one.take(other.opening())))
    refused = JoinRefused(reason="n0 was evicted")
    with pytest.raises(JoinRefusal, match="n0 was evicted") as refusal:
        other.take(frames.encode(refused) if is_forged else one.refusal(refused))
    assert refusal.value.is_proven == (not is_forged)


@pytest.mark.parametrize("line", [handshake.first_line(NEWER), handshake.first_line(OURS) + b"refused no room\n"])
def test_a_refusal_that_comes_before_any_proof_has_none(line: bytes) -> None:
    with pytest.raises(JoinRefusal) as refusal:
        agent().take(line)
    assert refusal.value.final
    assert not refusal.value.is_proven


# --- they do not


def test_a_wrong_token_is_refused_in_words_that_help() -> None:
    one, other = controller(), agent(token=b"another")
    other.take(one.opening())
    hello = other.take(one.take(other.opening()))
    with pytest.raises(TurnedAway, match="gpu-3: its token differs") as turned:
        one.take(hello)
    assert not one.is_proven
    with pytest.raises(WrongToken, match=r"gpu-0:29400; give all nodes the same one with ROBUST_TOKEN or --token-file"):
        other.take(turned.value.answer)


def test_a_controller_that_does_not_know_the_token_is_left() -> None:
    other = agent()
    other.take(handshake.first_line(OURS) + frames.encode(Challenge(nonce=b"c" * 32)))
    with pytest.raises(WrongToken, match="differs from this agent's"):
        other.take(frames.encode(msgspec.structs.replace(WELCOME, proof=b"p" * 32)))


def test_the_agents_own_proof_sent_back_does_not_open_it() -> None:
    other = agent()
    answer = other.take(handshake.first_line(OURS) + frames.encode(Challenge(nonce=b"c" * 32)))
    hello = frames.decode_from_agent(payloads(answer)[0])
    assert isinstance(hello, Hello)
    with pytest.raises(WrongToken):
        other.take(frames.encode(msgspec.structs.replace(WELCOME, proof=hello.proof)))


def test_a_recorded_hello_does_not_open_the_door_again() -> None:
    one, other = controller(), agent()
    other.take(one.opening())
    hello = other.take(one.take(other.opening()))
    again = controller()
    again.take(other.opening())
    with pytest.raises(TurnedAway, match="token differs"):
        again.take(hello)


@pytest.mark.parametrize("change", [{"term": 9}, {"nnodes": "8"}, {"node": hello_of("n1").node}, {"unknown": 1}])
def test_an_altered_hello_is_no_proof(change: dict[str, object]) -> None:
    one, other = controller(), agent()
    other.take(one.opening())
    fields = msgspec.msgpack.decode(payloads(other.take(one.take(other.opening())))[0])
    with pytest.raises(TurnedAway, match="token differs"):
        one.take(frames.framed(msgspec.msgpack.encode({**fields, **change})))


def test_a_field_of_a_later_version_is_covered_and_ignored() -> None:
    nonces = (b"c" * 32, b"a" * 32)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.structs.replace(hello_of("n0"), nonce=nonces[1])))
    plain = msgspec.msgpack.encode({**fields, "new_in_later_version": [1, 2]})
    proof = handshake._proof("agent", TOKEN, *nonces, b"", handshake._fields(plain))
    payload = msgspec.msgpack.encode({**msgspec.msgpack.decode(plain), "proof": proof})
    hello = frames.decode_from_agent(payload)
    assert isinstance(hello, Hello)
    assert handshake.is_proven(hello, payload, TOKEN, *nonces, b"")


def test_somebody_between_two_tls_channels_is_found_out() -> None:
    one, other = controller(channel=b"channel 1"), agent(channel=b"channel 2")
    other.take(one.opening())
    with pytest.raises(TurnedAway, match="token differs"):
        one.take(other.take(one.take(other.opening())))


@pytest.mark.parametrize("nonce", [b"", b"short", b"n" * 33])
def test_nonces_have_one_length(nonce: bytes) -> None:
    with pytest.raises(NotController, match="a nonce of"):
        agent().take(handshake.first_line(OURS) + frames.encode(Challenge(nonce=nonce)))
    payload = handshake.sealed(msgspec.structs.replace(hello_of("n0"), nonce=nonce), TOKEN, b"c" * 32, nonce, b"")
    hello = frames.decode_from_agent(payload)
    assert isinstance(hello, Hello)
    assert not handshake.is_proven(hello, payload, TOKEN, b"c" * 32, nonce, b"")


# --- other versions


def test_an_agent_of_another_version_is_refused_in_a_line_that_every_version_reads() -> None:
    with pytest.raises(TurnedAway) as turned:
        controller().take(handshake.first_line(NEWER))
    assert turned.value.answer.decode() == (
        f"refused gpu-3 speaks protocol 3 (robust-run 0.9), this controller speaks 2 (robust-run {OURS.version}); "
        "install the same version on all nodes\n"
    )


def test_an_agent_says_that_the_controller_is_of_another_version() -> None:
    with pytest.raises(VersionMismatch) as mismatch:
        agent().take(handshake.first_line(NEWER))
    assert str(mismatch.value) == (
        "the controller at gpu-0:29400 speaks protocol 3 (robust-run 0.9), "
        f"this agent speaks 2 (robust-run {OURS.version}); install the same version on all nodes"
    )
    assert mismatch.value.final
    assert mismatch.value.exit_code == 1


@pytest.mark.parametrize("step", [1, 1000])
def test_an_agent_reads_a_refusal_by_line_and_shows_nothing_that_moves_a_cursor(step: int) -> None:
    other = agent()
    other.take(handshake.first_line(OURS))
    line = b"refused no \x1b[2Jroom\n"
    with pytest.raises(JoinRefusal, match=r"the controller at gpu-0:29400 refuses: no \?\[2Jroom$"):
        for at in range(0, len(line), step):
            other.take(line[at : at + step])


def test_a_refusal_without_end_is_cut() -> None:
    other = agent()
    with pytest.raises(JoinRefusal) as refusal:
        other.take(handshake.first_line(OURS) + b"refused " + b"x" * 5000)
    assert len(str(refusal.value)) < 1100


@given(st.text(max_size=3000))
def test_a_refusal_is_always_one_short_line_of_ascii(text: str) -> None:
    line = handshake.refusal_line(text)
    assert line.startswith(b"refused ")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) < 1100


# --- garbage


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"\x00" * 9])
def test_a_port_that_is_no_controller_is_recognised(data: bytes) -> None:
    with pytest.raises(NotController, match="gpu-0:29400 answers, but not as a controller of robust-run"):
        agent().take(data)


def test_a_port_that_speaks_tls_is_recognised() -> None:
    with pytest.raises(NotController, match="speaks TLS; give this node --tls-cert"):
        agent().take(b"\x15\x03\x03\x00\x02\x02\x46")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (frames.UNPROVEN_FRAME_BYTES + 1).to_bytes(4, "big"),
        frames.framed(b"garbage"),
        frames.framed(msgspec.msgpack.encode({"type": "heartbeat", "number": 1})),
        frames.framed(b"\x91" * 60_000),
    ],
    ids="huge over-limit no-message other-message nested".split(),
)
def test_garbage_instead_of_a_hello_is_refused_in_words(data: bytes) -> None:
    one = controller()
    one.take(handshake.first_line(OURS))
    with pytest.raises(TurnedAway) as turned:
        one.take(data)
    refused = frames.decode_from_controller(payloads(turned.value.answer)[0])
    assert isinstance(refused, JoinRefused)
    assert refused.final
    assert not refused.wrong_token


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_never_get_in_and_never_break_the_door(data: bytes, after_first_line: bool) -> None:
    one = controller()
    if after_first_line:
        one.take(handshake.first_line(OURS))
    try:
        one.take(data)
    except TurnedAway as turned:
        assert turned.answer
    assert not one.is_proven


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_never_convince_an_agent(data: bytes, after_first_line: bool) -> None:
    other = agent()
    if after_first_line:
        other.take(handshake.first_line(OURS))
    try:
        other.take(data)
    except (NotController, JoinRefusal) as error:
        assert "gpu-0:29400" in str(error)
    assert other.welcome is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "../../etc"),
        ("id", "x" * 65),
        ("name", "a b"),
        ("name", "\x1b[2J"),
        ("nproc", 0),
        ("nproc", 10**9),
    ],
)
def test_names_that_could_do_harm_in_files_and_on_terminals_are_refused(field: str, value: object) -> None:
    hello = hello_of("n0")
    node = msgspec.structs.replace(hello.node, **{field: value})
    one, other = controller(), agent(hello=msgspec.structs.replace(hello, node=node))
    other.take(one.opening())
    with pytest.raises(TurnedAway) as turned:
        one.take(other.take(one.take(other.opening())))
    assert turned.value.why.isprintable()
    assert one.hello is None
