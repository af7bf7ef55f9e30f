"""`--coordinator`: what is meant is understood, nonsense is refused in one line."""

from __future__ import annotations

import pytest

from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.address import EtcdAddress, parse_coordinator


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("etcd://node7:2379", (("node7", 2379),)),
        ("etcd://node7", (("node7", 2379),)),
        ("etcd://node7:1/", (("node7", 1),)),
        ("etcd://10.0.0.1:2379,10.0.0.2:2379", (("10.0.0.1", 2379), ("10.0.0.2", 2379))),
        ("etcd://a:1, b:2", (("a", 1), ("b", 2))),
        ("etcd://a:1,a:1", (("a", 1),)),
        ("etcd://[fe80::1%eth0]:2379,[::1]", (("fe80::1%eth0", 2379), ("::1", 2379))),
        ("etcd+http://store.example.org:80", (("store.example.org", 80),)),
    ],
)
def test_endpoints_are_understood(text: str, endpoints: tuple[tuple[str, int], ...]) -> None:
    assert parse_coordinator(text) == EtcdAddress(endpoints=endpoints)


def test_only_https_uses_the_certificates() -> None:
    assert parse_coordinator("etcd+https://a:1", "/ca.pem") == EtcdAddress(
        endpoints=(("a", 1),), tls=True, ca_file="/ca.pem"
    )
    assert parse_coordinator("etcd://a:1", "/ca.pem").ca_file == ""


def test_an_address_is_said_as_it_is_typed() -> None:
    assert str(parse_coordinator("etcd+https://[::1]:5,b")) == "etcd+https://[::1]:5,b:2379"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node7:2379",
        "http://node7:2379",
        "etcd:node7",
        "etcd://",
        "etcd://,",
        "etcd://a:1,",
        "etcd://a:0",
        "etcd://a:65536",
        "etcd://a:port",
        "etcd://:2379",
        "etcd://::1:2379",
        "etcd://[::1",
        "etcd://a b:1",
        "etcd://a:1/v3",
        "etcd://a:1?x=y",
        "etcd://-a:1",
        "etcd://a\r\nX: y:1",
        "etcd://" + ",".join(f"n{index}" for index in range(17)),
    ],
)
def test_nonsense_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_coordinator(text)
    assert str(caught.value).isprintable()
    assert "--coordinator" in str(caught.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="not supported") as caught:
        parse_coordinator("etcd://ann:secret@node7:2379")
    assert "secret" not in str(caught.value)
