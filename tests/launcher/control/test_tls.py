"""TLS between agents and controller: who gets in with which files, and what is said about files that are wrong."""

from __future__ import annotations

import os
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from authorities import Authority, need_openssl, openssl
from controllers import TOKEN, hello_of, run, serving, until

from robust_run.errors import UserError
from robust_run.launcher.control.client import dial
from robust_run.launcher.control.errors import NotController, WrongToken
from robust_run.launcher.control.messages import ControlNotice, FromController, Heartbeat, HeartbeatReply
from robust_run.tls import client_context, server_context

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    need_openssl()
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def node(authority: Authority) -> tuple[str, str, str]:
    return authority.signed("node")


@pytest.fixture(scope="module")
def stranger(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs").signed("node")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("with_ca", [True, False])
def test_agents_with_the_files_of_the_job_get_in(
    node: tuple[str, str, str], version: ssl.TLSVersion, with_ca: bool
) -> None:
    cert, key, ca = node[0], node[1], node[2] if with_ca else ""

    async def main() -> None:
        async with serving(ssl_context=server_context(cert, key, ca)) as port:
            context = client_context(cert, key, ca)
            assert context is not None
            context.maximum_version = version
            connection = await port.dial(ssl_context=context)
            heard: list[FromController] = []
            connection.listen(heard.append, lambda why: None)
            connection.send(Heartbeat(number=1))
            connection.send(ControlNotice(text="x" * (3 << 20)))
            await until(lambda: heard and port.handler.messages)
            assert heard == [HeartbeatReply(number=1, term=7)]
            assert connection._transport.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
            connection.close()
            await until(lambda: port.handler.left)

    run(main())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_agent_without_a_certificate_is_told_what_is_missing(
    node: tuple[str, str, str], version: ssl.TLSVersion
) -> None:
    context = client_context("", "", node[2])
    assert context is not None
    context.maximum_version = version

    async def main() -> None:
        async with serving(ssl_context=server_context(*node)) as port:
            # whether its TLS library says why, or just closes, depends on versions of Python and of the protocol
            with pytest.raises((NotController, ConnectionResetError), match="--tls-cert and --tls-key of"):
                await port.dial(ssl_context=context)
            assert port.handler.hellos == []
            await until(lambda: port.handler.troubles and port.server.unproven == 0)
            assert "TLS failed" in port.handler.troubles[0]

    run(main())


def test_an_agent_of_another_ca_does_not_get_in(node: tuple[str, str, str], stranger: tuple[str, str, str]) -> None:
    async def main() -> None:
        async with serving(ssl_context=server_context(*node)) as port:
            with pytest.raises((NotController, ConnectionResetError), match="--tls-cert and --tls-key of"):
                await port.dial(ssl_context=client_context(stranger[0], stranger[1], node[2]))
            assert port.handler.hellos == []

    run(main())


def test_a_controller_of_another_ca_is_not_trusted(node: tuple[str, str, str], stranger: tuple[str, str, str]) -> None:
    async def main() -> None:
        async with serving(ssl_context=server_context(stranger[0], stranger[1], node[2])) as port:
            with pytest.raises(NotController, match="is not of this job's CA"):
                await port.dial(ssl_context=client_context(*node))
            assert port.handler.hellos == []

    run(main())


def test_a_wrong_token_does_not_get_in_by_a_right_certificate(node: tuple[str, str, str]) -> None:
    async def main() -> None:
        async with serving(ssl_context=server_context(*node)) as port:
            with pytest.raises(WrongToken):
                await port.dial(token=b"guess", ssl_context=client_context(*node))

    run(main())


def test_one_side_with_tls_and_one_without_is_said_in_words(node: tuple[str, str, str]) -> None:
    async def main() -> None:
        async with serving(ssl_context=server_context(*node)) as port:
            with pytest.raises((NotController, ConnectionResetError), match="--tls-cert"):
                await port.dial()
        async with serving() as port:
            with pytest.raises(NotController, match="does not answer in TLS"):
                await port.dial(ssl_context=client_context(*node))

    run(main())


def test_a_stranger_that_never_finishes_tls_is_thrown_out_and_keeps_nobody_out(node: tuple[str, str, str]) -> None:
    async def main() -> None:
        context = server_context(*node)
        async with serving(ssl_context=context, most_unproven=4) as port:
            strangers = [await port.raw() for _ in range(12)]
            connection = await port.dial(ssl_context=client_context(*node))
            assert port.server.unproven <= 4
            connection.close()
            for _, writer in strangers:
                writer.close()
        async with serving(ssl_context=context, handshake_s=0.2) as port:
            reader, writer = await port.raw()
            assert await reader.read() == b""
            await until(lambda: port.server.unproven == 0)
            writer.close()

    run(main())


def test_without_files_there_is_no_tls() -> None:
    assert server_context("", "", "") is None
    assert client_context("", "", "") is None


def test_tls_older_than_1_2_is_not_spoken(node: tuple[str, str, str]) -> None:
    for context in (server_context(*node), client_context(*node)):
        assert context is not None
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(
    node: tuple[str, str, str], stranger: tuple[str, str, str], tmp_path: Path
) -> None:
    cert, key, ca = node
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    locked = str(tmp_path / "locked.key")
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    cases = [
        (("/no/such.pem", key, ca), "--tls-cert /no/such.pem: cannot be read: No such file"),
        ((cert, "/no/such.key", ca), "--tls-key /no/such.key: cannot be read: No such file"),
        ((cert, key, "/no/such.pem"), "--tls-ca /no/such.pem: cannot be read: No such file"),
        ((str(text), key, ca), f"--tls-cert {text} with --tls-key {key}: no certificate and key in PEM form"),
        ((cert, "", ca), "(without --tls-key): no certificate and key in PEM form"),
        ((cert, key, str(text)), f"--tls-ca {text}: no certificate in PEM form"),
        ((cert, stranger[1], ca), "the key does not belong to --tls-cert"),
        ((cert, locked, ca), f"--tls-key {locked}: the key has a password"),
        (("", key, ""), "--tls-key without --tls-cert"),
    ]
    for files, text_of_error in cases:
        for make in (server_context, client_context):
            with pytest.raises(UserError) as error:
                make(*files)
            assert text_of_error in str(error.value)
            assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="--tls-ca without --tls-cert: the controller needs a certificate"):
        server_context("", "", ca)


def test_a_file_that_this_user_may_not_read_is_named(node: tuple[str, str, str], tmp_path: Path) -> None:
    key = tmp_path / "node.key"
    shutil.copy(node[1], key)
    key.chmod(0)
    if os.access(key, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        client_context(node[0], str(key), node[2])


def test_who_dials_by_a_name_that_is_not_in_the_certificate_gets_in(node: tuple[str, str, str]) -> None:
    async def main() -> None:
        async with serving(ssl_context=server_context(*node)) as port:
            connection = await dial(
                "localhost", port.number, TOKEN, hello_of("n0"), ssl_context=client_context(*node), timeout_s=30.0
            )
            assert len(port.server.peers) == 1
            connection.close()

    run(main())


def _shown(called: ssl.SSLContext, calls: ssl.SSLContext) -> bytes:
    """Return the certificate that whoever calls is shown."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = called.wrap_bio(there, back, server_side=True), calls.wrap_bio(back, there)
    for _ in range(6):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert(binary_form=True) or b""


def test_a_certificate_that_was_renewed_in_its_place_is_shown_from_then_on(
    authority: Authority, tmp_path: Path
) -> None:
    """Some last a day, and a node that comes back weeks later is to be let in."""
    first, second = authority.signed("first"), authority.signed("second")
    used = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    for file, place in zip(first, used, strict=False):
        shutil.copy(file, place)
    called, calls = server_context(*used, authority.ca), client_context(*first)
    assert called is not None
    assert calls is not None
    before = _shown(called, calls)
    Path(used[0]).write_text("half of it is")
    assert _shown(called, calls) == before, "what is not whole yet is not taken"
    for file, place in zip(second, used, strict=False):
        shutil.copy(file, f"{place}.new")
        os.replace(f"{place}.new", place)
    after = _shown(called, calls)
    assert after
    assert after != before
    assert _shown(called, calls) == after
