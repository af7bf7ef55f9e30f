"""One node needs no rendezvous; what torchrun users type for one must still mean the same to the workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from robust_run.errors import UserError
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.rendezvous import Rendezvous, parse_endpoint, parse_settings, resolve_rendezvous


def rendezvous(*options: str) -> Rendezvous:
    return resolve_rendezvous(parse([*options, "train.py"], {}))


def refusal(*options: str) -> str:
    with pytest.raises(UserError) as caught:
        rendezvous(*options)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("options", "address", "port"),
    [
        ([], "127.0.0.1", None),
        (["--standalone"], "127.0.0.1", None),
        (["--standalone", "--master-port", "29500", "--rdzv-backend", "etcd"], "127.0.0.1", None),
        (["--master-port", "29500"], "127.0.0.1", 29500),
        (["--master-port", "0"], "127.0.0.1", None),
        (["--master-addr", "node7", "--master-port", "1234"], "node7", 1234),
        (["--master-addr", "[::1]", "--master-port", "1234"], "::1", 1234),
        (["--rdzv-endpoint", "node7:1234"], "node7", 1234),
        (["--rdzv-endpoint", "[fe80::1%eth0]:1234"], "fe80::1%eth0", 1234),
        (["--rdzv-endpoint", "node7:0", "--master-port", "1"], "node7", None),
        (["--rdzv-backend", "c10d"], "127.0.0.1", None),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "node7:29400"], "127.0.0.1", None),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "node7"], "127.0.0.1", None),
        (["--rdzv-backend", "c10d", "--local-addr", "10.0.0.7"], "10.0.0.7", None),
        (["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", "/a:b"], "127.0.0.1", None),
    ],
)
def test_where_the_workers_meet(options: list[str], address: str, port: int | None) -> None:
    found = rendezvous(*options)
    assert (found.master_addr, found.master_port) == (address, port)


@pytest.mark.parametrize(
    ("options", "rdzv_id"),
    [([], None), (["--rdzv-id", "none"], None), (["--rdzv-id", "job 7"], "job 7"), (["--rdzv-id="], None)],
)
def test_the_job_is_named_if_somebody_named_it(options: list[str], rdzv_id: str | None) -> None:
    assert rendezvous(*options).rdzv_id == rdzv_id
    assert rendezvous("--standalone", *options).rdzv_id is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--master-port", "65536"], "--master-port 65536 is not a port; use 1 to 65535, or 0 for a free one"),
        (["--master-port", "-1"], "--master-port -1 is not a port"),
        (["--master-addr", "no de", "--master-port", "1"], "--master-addr 'no de' is not a host name or address"),
        (["--rdzv-endpoint", "node7"], "--rdzv-endpoint 'node7' has no port; write HOST:PORT"),
        (["--rdzv-endpoint", "node7:http"], "--rdzv-endpoint 'node7:http': 'http' is not a port from 0 to 65535"),
        (["--rdzv-endpoint", "node7:65536"], "--rdzv-endpoint 'node7:65536': '65536' is not a port from 0 to 65535"),
        (["--rdzv-endpoint", "http://node7:80"], "--rdzv-endpoint 'http://node7:80': 'http://node7' is not a host"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", ":1"], "--rdzv-endpoint ':1': '' is not a host"),
        (
            ["--rdzv-backend", "etcd-v2"],
            "--rdzv-backend etcd-v2: nodes meet without etcd; use c10d, and --coordinator etcd://HOST:PORT if",
        ),
        (["--rdzv-backend", "c10"], "--rdzv-backend: there is no backend 'c10'; did you mean c10d?"),
        (["--rdzv-backend", "zeus"], "--rdzv-backend: there is no backend 'zeus'; use static or c10d"),
        (["--rdzv-conf", "timeout"], "--rdzv-conf: 'timeout' is not KEY=VALUE"),
        (["--rdzv-conf", "a=1,"], "--rdzv-conf: '' is not KEY=VALUE"),
        (["--rdzv-conf", "=1"], "--rdzv-conf: '=1' is not KEY=VALUE"),
    ],
)
def test_nonsense_is_refused(options: list[str], message: str) -> None:
    assert refusal(*options).startswith(message)


@pytest.mark.parametrize("text", ["a=1,b=x=y", " a = 1 , b = x=y ", "'a=1,b=x=y'", '"a=1,b=x=y"', "'a'=\"1\",b='x=y'"])
def test_settings_may_carry_quotes_that_a_shell_left(text: str) -> None:
    assert parse_settings(text) == {"a": "1", "b": "x=y"}


def test_no_settings_are_none() -> None:
    assert parse_settings("") == parse_settings("''") == {}


@given(
    st.sampled_from(["host", "a.b-c.d", "10.0.0.1", "[::1]", "[fe80::1:2]", "::1", "h_1", "", "a b"]),
    st.one_of(st.just(""), st.integers(0, 70_000).map(lambda port: f":{port}"), st.just(":x")),
)
def test_endpoints_are_split_as_torchrun_splits_them(host: str, port: str) -> None:
    endpoint = host + port
    try:
        expected = parse_rendezvous_endpoint(endpoint, default_port=-1)
    except ValueError:
        with pytest.raises(UserError):
            parse_endpoint(endpoint)
        return
    found_host, found_port = parse_endpoint(endpoint)
    here = ("127.0.0.1", -1) if not endpoint else expected
    assert (found_host, -1 if found_port is None else found_port) == here
