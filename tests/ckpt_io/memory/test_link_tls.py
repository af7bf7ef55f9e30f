"""Keepers of a job with certificates: what a state consists of is hidden on the way, and nobody without key and certificate gets
in, stands between, or holds others up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from authorities import Authority, need_openssl
from keepers import KEY, LIMIT_S, KeeperGround, contents, load, save
from other_keepers import OURS, linked, other_keeper, parcel_of, push_of, send

from robust_run.ckpt_io.memory.agent_protocol import Bring, CopyTo, Source, TlsFiles
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.memory.copies import copying
from robust_run.ckpt_io.memory.copies import link as link_module
from robust_run.ckpt_io.memory.copies import server as copy_server
from robust_run.ckpt_io.memory.copies.copying import CopyFailed, Sender
from robust_run.ckpt_io.memory.copies.greeting import Credentials, dial
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost, LinkRefused
from robust_run.ckpt_io.memory.copies.link_tls import LinkTls
from robust_run.ckpt_io.memory.copies.words import Go, Kept, Pull, Push
from robust_run.errors import UserError

Nodes = Callable[..., KeeperGround]
Ranks = Callable[..., MemoryClient]
#: Bytes of a part that are easily found.
SECRET = b"weights of nobody else; " * 50_000


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """The files of a node of the job."""
    need_openssl()
    return files_of(Authority(tmp_path_factory.mktemp("ours"), "ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    need_openssl()
    return files_of(Authority(tmp_path_factory.mktemp("theirs"), "theirs"))


def files_of(authority: Authority, name: str = "node") -> TlsFiles:
    cert, key, ca = authority.signed(name)
    return TlsFiles(cert=cert, key=key, ca=ca)


def with_tls(files: TlsFiles, key: bytes = KEY) -> Credentials:
    return Credentials(key, LinkTls(files))


def gives(content: bytes) -> Callable[[Link], None]:
    """One who takes what is pushed, and gives this to who pulls."""

    def serve(link: Link) -> None:
        while True:
            word = link.receive(None)
            if isinstance(word, Push):
                link.send(Go())
                with memory() as into:
                    link.send(Kept(stride=1 if link.receive_part(into, word) else 99))
            else:
                link.send(parcel_of(content, word.step))
                send(link, content)

    return serve


@contextlib.contextmanager
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pushes(link: Link, content: bytes) -> None:
    link.send(push_of(content, 1))
    link.receive_one(Go)
    send(link, content)
    assert link.receive_one(Kept) == Kept(stride=1)


def pulls(link: Link, content: bytes) -> None:
    link.send(Pull(rank=0, attempt=0, step=1))
    said = link.receive()
    with memory() as into:
        assert link.receive_part(into, said)
        assert os.pread(into, len(content) + 1, 0) == content


class Relay:
    """Stands between two keepers, and notes all that passes."""

    def __init__(self, to: int) -> None:
        self._to, self.passed = to, bytearray()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._begin(self._accept)

    def _begin(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with self._listening:
            one, _ = self._listening.accept()
        other = socket.create_connection(("127.0.0.1", self._to), LIMIT_S)
        self._sockets += [one, other]
        for a, b in ((one, other), (other, one)):
            self._begin(lambda a=a, b=b: self._pass_on(a, b))  # type: ignore[misc]

    def _pass_on(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := a.recv(1 << 16):
                self.passed += content
                b.sendall(content)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LIMIT_S)
        for each in self._sockets:
            each.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("with_ca", [True, False])
def test_words_and_parts_pass_in_both_directions(ours: TlsFiles, version: ssl.TLSVersion, with_ca: bool) -> None:
    files = ours if with_ca else TlsFiles(cert=ours.cert, key=ours.key)
    tls = LinkTls(files)
    tls._calls.maximum_version = version
    with other_keeper(gives(SECRET), with_tls(files)) as other, linked(other, Credentials(KEY, tls)) as link:
        assert link._socket.version() == version.name.replace("_", ".")  # type: ignore[attr-defined]
        for _ in range(2):
            pushes(link, SECRET)
            pulls(link, SECRET)


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_who_listens_on_the_way_sees_no_byte_of_a_part_nor_a_word(ours: TlsFiles, is_encrypted: bool) -> None:
    both = with_tls(ours) if is_encrypted else OURS
    with other_keeper(gives(SECRET), both) as other:
        relay = Relay(other.port)
        link = dial("127.0.0.1", relay.port, both, LIMIT_S)
        pushes(link, SECRET)
        pulls(link, SECRET)
        link.cut()
        link.close()
        relay.join()
    seen = bytes(relay.passed)
    assert len(seen) > 2 * len(SECRET)
    found = [word in seen for word in (SECRET[:24], b"used_bytes")]
    assert found == [not is_encrypted] * 2, "without TLS both are there: the relay would have seen them"


def test_a_certificate_of_another_authority_is_refused_on_either_side(ours: TlsFiles, theirs: TlsFiles) -> None:
    strange = TlsFiles(cert=theirs.cert, key=theirs.key, ca=ours.ca)
    with other_keeper(gives(SECRET), with_tls(strange)) as other:
        with pytest.raises(LinkRefused, match=r"its certificate is not of this job's CA .*; check --tls-ca"):
            dial("127.0.0.1", other.port, with_tls(ours), LIMIT_S)
        assert other.links == []
    with other_keeper(gives(SECRET), with_tls(ours)) as other:
        # what is heard of it depends on what arrives first, the alert or the end of the connection
        with pytest.raises(LinkLost, match=r"(does not take this node's certificate|hung up while TLS).*same --tls"):
            dial("127.0.0.1", other.port, with_tls(strange), LIMIT_S)
        assert other.links == []


def test_a_certificate_does_not_stand_for_the_key(ours: TlsFiles) -> None:
    with other_keeper(gives(SECRET), with_tls(ours)) as other:
        with pytest.raises(LinkLost, match="it hung up"):
            dial("127.0.0.1", other.port, with_tls(ours, b"x" * 32), LIMIT_S)
        assert other.links == []


def test_one_with_a_certificate_of_the_job_cannot_stand_between(ours: TlsFiles) -> None:
    """It ends TLS on both sides, and passes on what each says: the proofs are of another channel."""
    between = LinkTls(ours)
    with other_keeper(gives(SECRET), with_tls(ours)) as other, socket.create_server(("127.0.0.1", 0)) as listening:
        passed: list[bytes] = []

        def stand_between() -> None:
            one, _ = listening.accept()
            other_end = socket.create_connection(("127.0.0.1", other.port), LIMIT_S)
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                inner = stack.enter_context(between._called.wrap_socket(one, server_side=True))
                outer = stack.enter_context(between._calls.wrap_socket(other_end))
                for a, b in ((outer, inner), (inner, outer), (outer, inner)):  # nonce, nonce and proof, proof
                    passed.append(a.recv(1 << 10))
                    b.sendall(passed[-1])

        thread = threading.Thread(target=stand_between)
        thread.start()
        with pytest.raises(LinkLost):
            dial("127.0.0.1", listening.getsockname()[1], with_tls(ours), LIMIT_S)
        thread.join(LIMIT_S)
        assert [len(each) for each in passed[:2]] == [16, 48], "it stood between"
        assert other.links == []


def test_one_side_with_tls_and_one_without_is_said_in_words(ours: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_keeper(gives(SECRET), OURS) as other, pytest.raises(LinkLost, match="all nodes need the same --tls"):
        dial("127.0.0.1", other.port, with_tls(ours), LIMIT_S)
    monkeypatch.setattr(copy_server, "PROOF_S", 0.1)
    with other_keeper(gives(SECRET), with_tls(ours)) as other:
        with pytest.raises(LinkRefused, match="it speaks TLS, this node does not; all nodes need the same --tls"):
            dial("127.0.0.1", other.port, OURS, LIMIT_S)
        assert other.links == []


def test_a_node_that_only_knows_authorities_says_what_it_lacks(ours: TlsFiles, node: Nodes) -> None:
    with pytest.raises(UserError, match="give --tls-cert and --tls-key, too"):
        LinkTls(TlsFiles(ca=ours.ca))
    keeper = node(tls=TlsFiles(ca=ours.ca))
    assert keeper.port == 0
    assert "no checkpoints in memory are copied to or from this node" in keeper.noted("give --tls-cert and --tls-key")
    with pytest.raises(LinkRefused, match="as was said"):
        dial("127.0.0.1", 1, Credentials(KEY, trouble="as was said"), LIMIT_S)


def test_another_thread_cuts_what_is_being_sent_and_nothing_leaves_unencrypted(ours: TlsFiles) -> None:
    took, may_go = threading.Event(), threading.Event()

    def takes_little(link: Link) -> None:
        link._socket.recv(1 << 10)
        took.set()
        assert_set(may_go)

    with other_keeper(takes_little, with_tls(ours)) as other:
        relay = Relay(other.port)
        link = dial("127.0.0.1", relay.port, with_tls(ours), LIMIT_S)
        ended: list[Exception] = []

        def sends() -> None:
            try:
                while True:
                    send(link, SECRET)
            except LinkLost as error:
                ended.append(error)

        sending = threading.Thread(target=sends)
        sending.start()
        assert took.wait(LIMIT_S)
        link.cut()
        sending.join(LIMIT_S)
        may_go.set()
        link.close()
        assert len(ended) == 1
        relay.join()
        assert SECRET[:24] not in relay.passed


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_a_call_that_is_not_answered_is_cut_by_another_thread(
    ours: TlsFiles, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "DIAL_S", 10 * LIMIT_S)
    sender = Sender(with_tls(ours) if is_encrypted else OURS, lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        order = CopyTo(attempt=0, host="127.0.0.1", port=listening.getsockname()[1])
        ended: list[Exception] = []

        def sends() -> None:
            try:
                sender.send(order, ())
            except CopyFailed as error:
                ended.append(error)

        thread = threading.Thread(target=sends)
        thread.start()
        connection, _ = listening.accept()
        with connection:
            sender.cut()
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "it does not wait until it is given up"
    assert len(ended) == 1 and isinstance(ended[0], CopyFailed) and ended[0].is_usual
    with pytest.raises(CopyFailed, match="nobody waits for it"):
        sender.send(order, ())


def assert_set(event: threading.Event) -> None:
    assert event.wait(LIMIT_S)


def test_one_who_takes_nothing_for_too_long_is_given_up(ours: TlsFiles) -> None:
    may_go = threading.Event()
    with other_keeper(lambda _: assert_set(may_go), with_tls(ours)) as other:
        link = dial("127.0.0.1", other.port, with_tls(ours), LIMIT_S)
        assert link._socket.gettimeout() == pytest.approx(20.0)
        link._socket.settimeout(0.05)  # in place of those 20 s
        with pytest.raises(LinkLost, match="does not answer"):
            while True:
                send(link, SECRET)
        link.close()
        may_go.set()


def test_a_link_that_has_encrypted_much_makes_room_for_another(ours: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_keeper(gives(SECRET), with_tls(ours)) as other, linked(other, with_tls(ours)) as one:
        pushes(one, SECRET)
        assert not one.is_worn
        monkeypatch.setattr(link_module, "FRESH_KEYS_BYTES", len(SECRET) - 1)
        assert one.is_worn


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000])
def test_strangers_have_few_places_and_keep_no_keeper_out(ours: TlsFiles, says: bytes) -> None:
    with other_keeper(gives(SECRET), with_tls(ours)) as other, contextlib.ExitStack() as stack:
        for _ in range(60):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", other.port), LIMIT_S))
            with contextlib.suppress(OSError):
                stranger.sendall(says)
        with linked(other, with_tls(ours)) as link:
            pushes(link, SECRET)
            assert other.unproven <= copy_server.MOST_AGREEING


def test_one_who_does_not_finish_tls_is_thrown_out(ours: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_server, "PROOF_S", 0.1)
    with other_keeper(gives(SECRET), with_tls(ours)) as other:
        with socket.create_connection(("127.0.0.1", other.port), LIMIT_S) as stranger:
            stranger.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            assert stranger.recv(1) == b""
        with socket.create_connection(("127.0.0.1", other.port), LIMIT_S) as stranger:
            assert stranger.recv(100).startswith(b"\x15\x03"), "an alert: TLS is spoken here"


def test_keepers_copy_and_bring_over_tls(ours: TlsFiles, node: Nodes, rank_of: Ranks) -> None:
    first, second, third = (node(tls=ours) for _ in range(3))
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    for step in (1, 2, 3):
        assert save(client, step, size_bytes=3_000_000)
        second.copies_until(lambda held, step=step: bool(held) and held[0] == (0, step, (0,)))
    first.kill()
    third.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(Source(0, "127.0.0.1", second.port, "node-1"),)))
    third.begin_attempt(1, (0,), resumed_step=3)
    assert load(rank_of(third, attempt=1), 0, 3) == contents(3, 0, 3_000_000)
    assert first.notes == second.notes == third.notes == []


def test_a_keeper_says_in_one_line_that_the_other_has_no_tls(ours: TlsFiles, node: Nodes, rank_of: Ranks) -> None:
    first, second = node(tls=ours), node()
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    for step in range(1, 6):
        assert save(client, step)
        assert first.look()[0] == (0, step, (0,)), "saving goes on"
    assert "all nodes need the same --tls options" in first.noted("no copies of checkpoints in memory on node-1")
    assert second.copies() == [] and len(first.notes) == 1
