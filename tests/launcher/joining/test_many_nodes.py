"""From the command line of a job of several nodes to how they meet, or one line that says what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.many_nodes import resolve_many

C10D = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0")
STATIC = ("--nnodes", "2", "--master-addr", "node0")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def resolved(machine: Machine, *options: str, **env: str) -> tuple[ManyNodes | None, tuple[str, ...]]:
    return resolve_many(parse([*options, "train.py"], env), machine.world())


def many(machine: Machine, *options: str) -> ManyNodes:
    found, notes = resolved(machine, *options)
    assert found is not None
    assert notes == ()
    return found


def refusal(machine: Machine, *options: str) -> str:
    with pytest.raises(UserError) as caught:
        resolved(machine, *options)
    message = str(caught.value)
    assert message.isprintable()
    return message


# --- one node or several --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--nnodes", "1:1"],
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400"],
        ["--master-port", "29500"],
        ["--standby", "auto"],
        ["--standalone", "--nnodes", "1:4"],
    ],
)
def test_a_job_that_runs_on_one_node_needs_no_network(machine: Machine, options: list[str]) -> None:
    assert resolved(machine, *options) == (None, ())


@pytest.mark.parametrize("nnodes", ["2", "1:4", "100000"])
def test_several_nodes_do(machine: Machine, nnodes: str) -> None:
    found = many(machine, *STATIC, "--nnodes", nnodes)
    assert (found.fewest, found.most) == (int(nnodes.split(":")[0]), int(nnodes.split(":")[-1]))


def test_one_node_with_a_standby_is_two(machine: Machine) -> None:
    found = many(machine, "--nnodes", "1", "--standby", "1", "--master-addr", "node0")
    assert (found.fewest, found.most, found.standby) == (1, 1, 1)


@pytest.mark.parametrize(("options", "what"), [(["--nnodes", "2"], "--nnodes 2"), (["--standby", "1"], "--standby 1")])
def test_a_standalone_node_is_alone(machine: Machine, options: list[str], what: str) -> None:
    assert refusal(machine, "--standalone", *options) == (
        f"--standalone is one node that no other can join; leave it or {what} out"
    )


def test_one_node_is_told_what_does_nothing_there(machine: Machine) -> None:
    options = ("--evict-list", "bad.jsonl", "--wait-for-nodes", "5", "--standby", "auto", "--controller-standby", "0")
    assert resolved(machine, *options) == (
        None,
        ("--wait-for-nodes, --evict-list: nothing to do, the job has one node",),
    )


@pytest.mark.parametrize("endpoint", ["localhost:0", "127.0.0.1:0", "[::1]:0"])
def test_a_port_of_its_own_is_known_to_no_other_node(machine: Machine, endpoint: str) -> None:
    """As many type it for torchrun on one machine, with the size of the cluster's jobs left in the line."""
    words = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    said = f"--rdzv-endpoint {endpoint}: port 0 is one that no other node knows; this job has one node"
    assert resolved(machine, *words, "--nnodes", "1:2") == (None, (said,))
    for several in (("--nnodes", "2"), ("--nnodes", "1:2", "--standby", "1")):
        assert refusal(machine, *words, *several).startswith("--rdzv-endpoint: port 0 is a different one each time")


# --- where they meet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "host", "port"),
    [
        (STATIC, "node0", 29500),
        ((*STATIC, "--master-port", "1234"), "node0", 1234),
        (("--nnodes", "2", "--rdzv-endpoint", "node1:7", "--master-addr", "node0"), "node1", 7),
        (("--nnodes", "2", "--master-addr", "127.0.0.1"), "127.0.0.1", 29500),
        (("--nnodes", "2", "--master-addr", "[::1]"), "::1", 29500),
        (C10D, "node0", 29400),
        ((*C10D, "--rdzv-endpoint", "node0:1234", "--master-port", "7"), "node0", 1234),
    ],
)
def test_the_meeting_point(machine: Machine, options: tuple[str, ...], host: str, port: int) -> None:
    found = many(machine, *options)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--nnodes", "1:4", "--rdzv-backend", "c10d"),
            "--nnodes 1:4 needs a place to meet: give --rdzv-endpoint HOST:PORT, the same on every node",
        ),
        ((*C10D, "--rdzv-endpoint", "node0:0"), "--rdzv-endpoint: port 0 is a different one each time"),
        ((*C10D, "--rdzv-conf", "store_type=file"), "--rdzv-conf store_type=file: nodes meet at an address"),
        (
            (*C10D, "--rdzv-endpoint", "0.0.0.0:1"),
            "--rdzv-endpoint 0.0.0.0 is no address that other nodes can connect to",
        ),
        ((*STATIC, "--rdzv-endpoint", "node0"), "--rdzv-endpoint 'node0' has no port; write HOST:PORT"),
        ((*STATIC, "--master-port", "0"), "--master-port: port 0 is a different one each time"),
        ((*STATIC, "--master-port", "65536"), "--master-port 65536 is not a port"),
        ((*STATIC, "--master-addr", "no de"), "--master-addr 'no de' is not a host name or address"),
        ((*STATIC, "--local-addr", "no de"), "--local-addr 'no de' is not a host name or address"),
        ((*STATIC, "--rdzv-backend", "etcd"), "--rdzv-backend etcd: nodes meet without etcd; use c10d, and --coord"),
    ],
)
def test_a_place_where_nobody_can_meet_is_refused(machine: Machine, options: tuple[str, ...], message: str) -> None:
    assert refusal(machine, *options).startswith(message)


@pytest.mark.parametrize(
    ("options", "node_rank", "is_host"),
    [
        ([], None, None),
        (["--node-rank", "0"], 0, True),
        (["--node-rank", "1"], 1, False),
        (["--node-rank", "1", "--rdzv-conf", "is_host=1"], 1, True),
        (["--rdzv-conf", "is_host=False"], None, False),
    ],
)
def test_the_first_node_hosts_the_controller_if_nodes_were_counted(
    machine: Machine, options: list[str], node_rank: int | None, is_host: bool | None
) -> None:
    found = many(machine, *STATIC, *options)
    assert (found.node_rank, found.is_host) == (node_rank, is_host)


def test_a_node_rank_is_one_of_the_jobs(machine: Machine) -> None:
    assert refusal(machine, *STATIC, "--node-rank", "2").startswith("--node-rank 2: the job's nodes are 0 to 1")
    assert many(machine, *STATIC, "--standby", "1", "--node-rank", "2").node_rank == 2


def test_c10d_counts_no_nodes(machine: Machine) -> None:
    found, notes = resolved(machine, *C10D, PET_NODE_RANK="1")
    assert found is not None
    assert (found.node_rank, found.is_host) == (None, None)
    assert notes == ("--node-rank does nothing: with c10d the controller places the nodes",)


@pytest.mark.parametrize(
    ("options", "name"),
    [([], ""), (["--rdzv-id", "a b"], "a b"), (["--run-id", "x"], "x"), (["--run-id", "x", "--rdzv-id", "y"], "y")],
)
def test_the_name_all_nodes_know(machine: Machine, options: list[str], name: str) -> None:
    assert many(machine, *STATIC, *options).job == name


# --- --rdzv-conf ----------------------------------------------------------------------------------------------------


def test_times_are_as_with_torchrun_unless_they_are_given(machine: Machine) -> None:
    found = many(machine, *C10D)
    assert (found.join_timeout_s, found.last_call_s) == (600, 30)
    assert (found.heartbeat_s, found.lease_s) == (1, 3)
    found = many(machine, *C10D, "--rdzv-conf", "join_timeout=5,last_call_timeout=0.5,close_timeout=9,mine=x")
    assert (found.join_timeout_s, found.last_call_s) == (5, 0.5)


@pytest.mark.parametrize(
    ("conf", "heartbeat_s", "lease_s"),
    [
        ("keep_alive_interval=2", 2, 6),
        ("keep_alive_max_attempt=5", 1, 5),
        ("keep_alive_interval=0.5,keep_alive_max_attempt=4", 0.5, 2),
    ],
)
def test_so_many_heartbeats_may_be_missed(machine: Machine, conf: str, heartbeat_s: float, lease_s: float) -> None:
    found = many(machine, *C10D, "--rdzv-conf", conf)
    assert (found.heartbeat_s, found.lease_s) == (heartbeat_s, lease_s)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ("join_timeout=soon", "join_timeout='soon' is not a number"),
        ("join_timeout=-1", "join_timeout: -1: must be 0 or more"),
        ("last_call_timeout=inf", "last_call_timeout: inf: must be 0 or more, and not infinite"),
        ("keep_alive_interval=0", "keep_alive_interval=0: must be 0.05 seconds or more"),
        ("keep_alive_max_attempt=1", "keep_alive_max_attempt=1: must be 2 or more"),
        ("is_host=maybe", "is_host='maybe' is neither 1 nor 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(machine: Machine, conf: str, message: str) -> None:
    assert refusal(machine, *C10D, "--rdzv-conf", conf).startswith(f"--rdzv-conf {message}")


def test_a_slip_in_a_setting_is_not_ignored(machine: Machine) -> None:
    assert refusal(machine, *C10D, "--rdzv-conf", "join_timout=5") == (
        "--rdzv-conf: there is no setting 'join_timout'; did you mean join_timeout?"
    )


# --- our own options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("standby", "count"), [("0", 0), ("3", 3), ("auto", 4), (" auto ", 4)])
def test_standbys_are_counted_or_computed_from_the_nodes(machine: Machine, standby: str, count: int) -> None:
    assert many(machine, *STATIC, "--nnodes", "512:1024", "--standby", standby).standby == count


@pytest.mark.parametrize("standby", ["-1", "x", "1.5", "", "100001"])
def test_an_impossible_number_of_standbys_is_refused(machine: Machine, standby: str) -> None:
    assert refusal(machine, *STATIC, f"--standby={standby}").startswith("--standby ")


def test_the_wait_for_nodes_is_a_time(machine: Machine) -> None:
    assert many(machine, *STATIC).wait_for_nodes_s is None
    assert many(machine, *STATIC, "--wait-for-nodes", "0").wait_for_nodes_s == 0
    assert refusal(machine, *STATIC, "--wait-for-nodes=-1").startswith("--wait-for-nodes -1: must be 0 or more")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("etcd://e1:2379", "etcd://e1:2379"),
        ("etcd://e1,e2:7,[::1]", "etcd://e1:2379,e2:7,[::1]:2379"),
    ],
)
def test_a_coordinator_is_written_out(machine: Machine, given: str, meant: str) -> None:
    assert many(machine, *STATIC, "--controller-standby", "1", "--coordinator", given).coordinator == meant


@pytest.mark.parametrize("given", ["e1:2379", "http://e1:2379", "etcd://", "etcd://a,,b", "etcd://a:x", "etcd://a:0"])
def test_what_is_no_coordinator_is_refused(machine: Machine, given: str) -> None:
    message = refusal(machine, *STATIC, "--controller-standby", "1", "--coordinator", given)
    assert message.startswith("--coordinator")
    assert "etcd://HOST:PORT" in message


def test_a_coordinator_without_standby_controllers_is_a_misunderstanding(machine: Machine) -> None:
    assert "--controller-standby K" in refusal(machine, *STATIC, "--coordinator", "etcd://e1:2379")


def test_standby_controllers_are_other_nodes(machine: Machine) -> None:
    assert many(machine, *STATIC, "--controller-standby", "1").controller_standby == 1
    assert refusal(machine, *STATIC, "--controller-standby", "2").startswith("--controller-standby 2: must be 0 to 1")
    assert refusal(machine, *STATIC, "--controller-standby=-1").startswith("--controller-standby -1: must be 0 to 1")


def test_standby_controllers_need_a_journal(machine: Machine) -> None:
    message = refusal(machine, *STATIC, "--controller-standby", "1", "--log-dir", "/dev/null")
    assert "choose a --log-dir that the nodes share" in message


def test_files_become_absolute(machine: Machine) -> None:
    for name in ("cert.pem", "key.pem", "ca.pem"):
        machine.write(f"/job/{name}")
    found = many(
        machine,
        *STATIC,
        *("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-ca", "./ca.pem"),
        *("--token-file", "~/secret", "--evict-list", "bad.jsonl"),
    )
    assert (found.tls_cert, found.tls_key, found.tls_ca) == ("/job/cert.pem", "/job/key.pem", "/job/ca.pem")
    assert (found.token_file, found.evict_list) == ("/home/ann/secret", "/job/bad.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-key", "key.pem"], "--tls-key needs --tls-cert beside it"),
        (["--tls-cert", "cert.pem"], "--tls-cert needs --tls-key beside it"),
        (["--tls-ca", "ca.pem"], "--tls-ca needs --tls-cert and --tls-key: this node may have to host"),
        (["--tls-cert", "x.pem", "--tls-key", "key.pem"], "--tls-cert 'x.pem' is no file that can be read"),
        (
            ["--evict-list", "no/such/list"],
            "--evict-list 'no/such/list' cannot be a list: there is no folder /job/no/such",
        ),
        (["--evict-list", "/job"], "--evict-list '/job' cannot be a list: it is a folder"),
    ],
)
def test_files_that_are_missing_are_named(machine: Machine, options: list[str], message: str) -> None:
    machine.write("/job/key.pem")
    machine.write("/job/ca.pem")
    assert refusal(machine, *STATIC, *options).startswith(message)


def test_a_node_that_hosts_nothing_needs_no_certificate_of_its_own(machine: Machine) -> None:
    machine.write("/job/ca.pem")
    assert many(machine, *STATIC, "--node-rank", "1", "--tls-ca", "ca.pem").tls_ca == "/job/ca.pem"


def test_nodes_that_were_told_no_place_to_meet_are_said_to_meet_on_this_machine_only(machine: Machine) -> None:
    def remarks(*options: str) -> tuple[str, ...]:
        return resolved(machine, *options)[1]

    (note,) = remarks("--nnodes", "2")
    assert note == "without --master-addr HOST the nodes meet at 127.0.0.1:29500, which is no other machine than this"
    assert remarks("--nnodes", "2", "--master-addr", "127.0.0.1") == ()
    assert remarks("--nnodes", "2", "--rdzv-endpoint", "node-0:29500") == ()


# --- what a node is called ------------------------------------------------------------------------------------------


def test_a_node_is_called_by_its_host_name_unless_it_is_told_another(machine: Machine) -> None:
    assert many(machine, *C10D).node_name == ""
    assert many(machine, *C10D, "--node-name", "gpu-17.cluster.internal").node_name == "gpu-17.cluster.internal"


def test_one_node_is_not_told_that_its_name_does_nothing(machine: Machine) -> None:
    assert resolved(machine, ROBUST_NODE_NAME="gpu-17") == (None, ())


@pytest.mark.parametrize("name", ["gpu 17", "../gpu", "-gpu", "gpu/1", "g" * 254, "gpu\x1b[2J"])
def test_what_is_no_name_of_a_machine_is_refused(machine: Machine, name: str) -> None:
    assert "is no name of a machine" in refusal(machine, *C10D, f"--node-name={name}")
