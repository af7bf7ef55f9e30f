"""Which CPUs a worker gets, on machines whose /sys is a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.numa import Cpus, SysfsTopology, cpus_for_ranks, parse_cpu_list, system_topology

GPU = "GPU UUID: GPU-{0}\nDevice Minor: {0}\n"
MODES = ["node", "socket", "exclusive", "core-complex"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return two_sockets(Machine(tmp_path))


def two_sockets(machine: Machine) -> Machine:
    """Two sockets, two NUMA nodes each, four cores each, two threads each: node n has cores 4n..4n+3 and threads +16.

    Cores 0-1, 2-3, 4-5, ... share a last-level cache. Node numbers of the GPUs are added by `add_gpus`.
    """
    for node in range(4):
        first = 4 * node
        machine.write(
            f"/sys/devices/system/node/node{node}/cpulist", f"{first}-{first + 3},{first + 16}-{first + 19}\n"
        )
    machine.write("/sys/devices/system/node/possible", "0-3\n")
    for cpu in range(32):
        core = cpu % 16
        pair = core - core % 2
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        machine.write(f"{folder}/topology/physical_package_id", f"{core // 8}\n")
        machine.write(f"{folder}/topology/thread_siblings_list", f"{core},{core + 16}\n")
        caches = [("1", "Data", f"{core},{core + 16}"), ("1", "Instruction", f"{core}"), ("3", "Unified", "")]
        for index, (level, kind, sharing) in enumerate(caches):
            machine.write(f"{folder}/cache/index{index}/level", level)
            machine.write(f"{folder}/cache/index{index}/type", kind)
            together = sharing or f"{pair}-{pair + 1},{pair + 16}-{pair + 17}"
            machine.write(f"{folder}/cache/index{index}/shared_cpu_list", together)
    return machine


def add_gpus(machine: Machine, *nodes: int) -> None:
    machine.write("/dev/nvidiactl")
    for minor, node in enumerate(nodes):
        address = f"0000:{16 + minor:02x}:00.0"
        machine.write(f"/dev/nvidia{minor}")
        machine.write(f"/proc/driver/nvidia/gpus/{address}/information", GPU.format(minor))
        machine.write(f"/sys/bus/pci/devices/{address}/numa_node", f"{node}\n")


def bind(machine: Machine, mode: str, nproc: int, usable: str = "0-31", **env: str) -> list[Cpus]:
    topology = SysfsTopology(machine.world().files, env, parse_cpu_list(usable))
    return list(cpus_for_ranks(mode, nproc, topology))


def refusal(machine: Machine, mode: str, nproc: int, usable: str = "0-31", **env: str) -> str:
    with pytest.raises(UserError) as caught:
        bind(machine, mode, nproc, usable, **env)
    message = str(caught.value)
    assert message.isprintable()
    return message


def cpus(*lists: str) -> list[Cpus]:
    return [parse_cpu_list(text) for text in lists]


def test_node_is_the_numa_node_of_the_gpu(machine: Machine) -> None:
    add_gpus(machine, 3, 0)
    assert bind(machine, "node", 2) == cpus("12-15,28-31", "0-3,16-19")


def test_socket_is_all_nodes_of_the_gpu_s_socket(machine: Machine) -> None:
    add_gpus(machine, 3, 0)
    assert bind(machine, "socket", 2) == cpus("8-15,24-31", "0-7,16-23")


def test_exclusive_divides_whole_cores_among_the_gpus_of_a_node(machine: Machine) -> None:
    add_gpus(machine, 1, 0, 1)
    assert bind(machine, "exclusive", 3) == cpus("4-5,20-21", "0-3,16-19", "6-7,22-23")


def test_exclusive_gives_the_first_gpus_the_cores_that_are_left_over(machine: Machine) -> None:
    add_gpus(machine, 2, 2, 2)
    assert bind(machine, "exclusive", 3) == cpus("8-9,24-25", "10,26", "11,27")


def test_exclusive_leaves_the_share_of_gpus_without_a_worker_free(machine: Machine) -> None:
    add_gpus(machine, 0, 0)
    assert bind(machine, "exclusive", 1) == cpus("0-1,16-17")


def test_exclusive_with_fewer_cores_than_gpus_is_refused(machine: Machine) -> None:
    add_gpus(machine, 0, 0, 0, 0, 0)
    assert refusal(machine, "exclusive", 5) == (
        "--numa-binding exclusive: NUMA node 0 has 4 cores for 5 workers or GPUs;"
        " use --numa-binding node, or fewer workers"
    )


def test_core_complexes_are_dealt_in_turn(machine: Machine) -> None:
    add_gpus(machine, 0, 0, 0, 1)
    assert bind(machine, "core-complex", 4) == cpus("0-1,16-17", "2-3,18-19", "0-1,16-17", "4-5,20-21")


def test_core_complexes_with_more_usable_cpus_come_first(machine: Machine) -> None:
    add_gpus(machine, 0)
    assert bind(machine, "core-complex", 1, usable="1-3,17-31") == cpus("2-3,18-19")


@pytest.mark.parametrize("mode", MODES)
def test_only_cpus_the_job_may_use_are_given_out(machine: Machine, mode: str) -> None:
    add_gpus(machine, 0, 1)
    for chosen in bind(machine, mode, 2, usable="0,2,5,17,20"):
        assert chosen
        assert chosen <= parse_cpu_list("0,2,5,17,20")


def test_visible_devices_choose_and_order_the_gpus(machine: Machine) -> None:
    add_gpus(machine, 0, 1, 2, 3)
    assert bind(machine, "node", 2, CUDA_VISIBLE_DEVICES="3,1") == cpus("12-15,28-31", "4-7,20-23")


def test_more_workers_than_gpus_start_again_at_the_first(machine: Machine) -> None:
    add_gpus(machine, 2, 1)
    assert bind(machine, "exclusive", 3) == cpus("8-9,24-25", "4-7,20-23", "10-11,26-27")


def test_without_gpus_workers_are_dealt_over_the_nodes(machine: Machine) -> None:
    assert bind(machine, "node", 5) == cpus("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31", "0-3,16-19")
    assert bind(machine, "exclusive", 5)[4] == parse_cpu_list("2-3,18-19")


def test_without_gpus_nodes_the_job_may_not_use_are_left_out(machine: Machine) -> None:
    assert bind(machine, "node", 2, usable="4-5,8-15,20-27") == cpus("4-5,20-23", "8-11,24-27")
    assert bind(machine, "node", 3, usable="8,12") == cpus("8", "12", "8")


def test_hidden_gpus_count_as_none(machine: Machine) -> None:
    add_gpus(machine, 3, 3)
    assert bind(machine, "node", 1, CUDA_VISIBLE_DEVICES="") == cpus("0-3,16-19")


def test_a_gpu_far_from_every_cpu_of_the_job_is_refused(machine: Machine) -> None:
    add_gpus(machine, 0, 3)
    assert refusal(machine, "node", 2, usable="0-3").startswith(
        "--numa-binding node: this job may use no CPU of NUMA node 3, where GPU 1 is"
    )
    assert bind(machine, "node", 1, usable="0-3") == cpus("0-3")


def test_gpus_that_cannot_be_told_apart_are_refused(machine: Machine) -> None:
    add_gpus(machine, 0)
    assert "CUDA_VISIBLE_DEVICES='MIG-1'" in refusal(machine, "node", 1, CUDA_VISIBLE_DEVICES="MIG-1")


def test_gpus_of_others_are_refused_rather_than_bound_wrongly(machine: Machine) -> None:
    machine.write("/dev/kfd")
    assert "finds only NVIDIA's GPUs so far" in refusal(machine, "node", 1)


def test_a_gpu_whose_node_is_unknown_is_refused_where_it_matters(machine: Machine) -> None:
    add_gpus(machine, 0)
    Path(f"{machine.root}/sys/bus/pci/devices/0000:10:00.0/numa_node").unlink()
    assert "does not say where GPU 0000:10:00.0 is" in refusal(machine, "node", 1)


def test_a_machine_with_one_node_says_minus_one_for_its_gpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("/sys/devices/system/node/node0/cpulist", "0-3")
    add_gpus(machine, -1, -1)
    assert bind(machine, "node", 2) == cpus("0-3", "0-3")
    assert bind(machine, "exclusive", 2) == cpus("0-1", "2-3")


def test_a_machine_without_numa_is_refused(tmp_path: Path) -> None:
    assert "shows no NUMA node" in refusal(Machine(tmp_path), "node", 1)


def test_an_unknown_mode_is_refused(machine: Machine) -> None:
    assert refusal(machine, "core", 1) == "--numa-binding 'core': use node, socket, exclusive or core-complex"


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 6), st.sampled_from(MODES))
def test_every_rank_gets_cpus_and_exclusive_ones_are_nobody_else_s(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[int], nproc: int, mode: str
) -> None:
    machine = two_sockets(Machine(tmp_path_factory.mktemp("machine")))
    if nodes:
        add_gpus(machine, *nodes)
    try:
        chosen = bind(machine, mode, nproc)
    except UserError as error:
        assert mode == "exclusive"
        assert "4 cores for" in str(error)
        return
    assert len(chosen) == nproc
    assert all(chosen)
    if mode == "exclusive":
        assert sum(map(len, chosen)) == len(frozenset().union(*chosen))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("\n", set()), ("0", {0}), ("0-3,8\n", {0, 1, 2, 3, 8}), ("3-3, ", {3})],
)
def test_the_kernel_s_lists_are_read(text: str, numbers: set[int]) -> None:
    assert parse_cpu_list(text.replace(" ", "")) == numbers


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be read: '0-x'"):
        parse_cpu_list("0-x")


def test_this_machine_s_own_topology_can_be_read() -> None:
    topology = system_topology({})
    usable = frozenset(os.sched_getaffinity(0))
    assert all(topology.cpus_of_node(node) <= usable for node in topology.nodes())
    assert {topology.core_of(cpu) >= 0 and topology.complex_of(cpu) >= 0 for cpu in usable} == {True}
