"""Whether NCCL's threads run, and what their network is, is read from `/proc`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tracer.nccl.simulate import Model, trace_of
from tracer.nccl.stalls import one_group

from robust_run.tracer.nccl.types import NcclTrace
from robust_run.tracer.sight.proxy_threads import judged, network_of, ran_ns

RANK, WRAPPER, THREAD = 40, 30, 47


def trace() -> NcclTrace:
    found = trace_of(Model(one_group(2, "ring", 4, 1), None, 1), 0)
    (one,) = found.communicators
    glance = msgspec.structs.replace(found.glance, pid=RANK)
    return msgspec.structs.replace(
        found, glance=glance, communicators=(msgspec.structs.replace(one, thread=THREAD, proxy=""),)
    )


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A rank below a wrapper, with a thread of NCCL's."""
    for pid, parent in ((RANK, WRAPPER), (WRAPPER, 1)):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a) b) S {parent} 1 1 0\n")
        (tmp_path / f"{pid}/maps").write_text("7f00-7f01 r-xp 0 0:0 1 /usr/lib/libnccl.so.2\n")
    (tmp_path / f"{RANK}/task/{THREAD}").mkdir(parents=True)
    runs(tmp_path, 5_000)
    return tmp_path


def runs(proc: Path, ns: int) -> None:
    (proc / f"{RANK}/task/{THREAD}/schedstat").write_text(f"{ns} 17 3\n")


def opens(proc: Path, number: int, target: str) -> None:
    os.symlink(target, proc / f"{RANK}/fd/{number}")


@pytest.mark.parametrize(("later_ns", "proxy"), [(5_000, "still"), (5_001, "runs")])
def test_a_thread_that_got_no_cpu_between_two_looks_stands_still(proc: Path, later_ns: int, proxy: str) -> None:
    before = ran_ns(trace(), WRAPPER, str(proc))
    runs(proc, later_ns)
    (one,) = judged(trace(), before, ran_ns(trace(), WRAPPER, str(proc))).communicators
    assert one.proxy == proxy


def test_nothing_is_said_of_a_thread_that_was_not_seen_twice_or_has_gone(proc: Path) -> None:
    once = ran_ns(trace(), WRAPPER, str(proc))
    assert judged(trace(), {}, once).communicators[0].proxy == ""
    (proc / f"{RANK}/task/{THREAD}/schedstat").unlink()
    assert judged(trace(), once, ran_ns(trace(), WRAPPER, str(proc))).communicators[0].proxy == ""


def test_a_process_that_only_has_the_same_number_is_not_looked_at(proc: Path) -> None:
    """A rank in a container counts processes for itself."""
    opens(proc, 3, "socket:[1]")
    assert ran_ns(trace(), 99, str(proc)) == {}
    assert network_of(trace(), 99, str(proc)) == ""


@pytest.mark.parametrize(
    ("targets", "network"),
    [
        (("socket:[7]",), "sockets"),
        (("socket:[7]", "/dev/infiniband/uverbs0"), "rdma"),
        (("socket:[7]", "/dev/cxi0"), "rdma"),
        (("/dev/nvidia0",), ""),
    ],
)
def test_the_network_is_known_by_what_the_rank_has_open(proc: Path, targets: tuple[str, ...], network: str) -> None:
    for number, target in enumerate(targets):
        opens(proc, number, target)
    assert network_of(trace(), WRAPPER, str(proc)) == network


def test_of_a_network_plugin_of_nccls_nothing_is_known(proc: Path) -> None:
    opens(proc, 3, "socket:[7]")
    (proc / f"{RANK}/maps").write_text("7f00-7f01 r-xp 0 0:0 1 /opt/libnccl-net-tcpx.so\n")
    assert network_of(trace(), RANK, str(proc)) == ""
