"""How many workers a word for devices means, on machines made of files, and when torch must be asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.devices import ask_torch, count_workers, visible_gpus
from robust_run.launcher.agent.workers.this_machine import RealFiles, system_world
from robust_run.launcher.model.world import World

INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t GPU-{uuid}
Bus Location: \t {address}
Device Minor: \t {minor}
"""


class Torch:
    """Answers for torch, and remembers what it was asked."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, kind: str) -> int:
        self.asked.append(kind)
        return self.answer


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def add_gpus(machine: Machine, count: int) -> None:
    """Put NVIDIA GPUs into the machine; GPU 2 has the UUID GPU-c2..."""
    machine.write("/dev/nvidiactl")
    machine.write("/site/torch/lib/libtorch_cuda.so")
    for minor in range(count):
        address = f"0000:{16 + minor:02x}:00.0"
        machine.write(f"/dev/nvidia{minor}")
        machine.write(
            f"/proc/driver/nvidia/gpus/{address}/information",
            INFORMATION.format(uuid=f"{'abcdefgh'[minor]}{minor}-00", address=address, minor=minor),
        )


def count(machine: Machine, kind: str, torch: Torch | None = None, **env: str) -> int:
    changes = {"ask_torch": torch} if torch else {}
    return count_workers(kind, machine.world(env=env, **changes))


def test_cpu_counts_the_cpus_this_process_may_use(machine: Machine) -> None:
    assert count(machine, "cpu") == 6
    assert system_world({}).cpu_count() == len(os.sched_getaffinity(0))


def test_auto_without_any_accelerator_is_the_cpus_and_torch_is_not_asked(machine: Machine) -> None:
    assert count(machine, "auto") == 6


@pytest.mark.parametrize("kind", ["gpu", "auto"])
def test_the_driver_s_list_is_enough(machine: Machine, kind: str) -> None:
    add_gpus(machine, 8)
    machine.write("/dev/dri/renderD128")
    assert count(machine, kind) == 8


@pytest.mark.parametrize(
    ("chosen", "visible"),
    [
        ("0", 1),
        ("3,1", 2),
        (" 0 , 2 ", 2),
        ("0,9,1", 1),
        ("0,-1,1", 1),
        ("0,x", 1),
        ("GPU-c2", 1),
        ("GPU-c2-00,GPU-a0", 2),
        ("GPU-zz", 0),
        ("GPU-", 0),
        ("", 0),
        ("-1", 0),
    ],
)
def test_cuda_visible_devices_chooses_up_to_its_first_wrong_entry(machine: Machine, chosen: str, visible: int) -> None:
    add_gpus(machine, 4)
    gpus = visible_gpus(RealFiles(str(machine.root)), {"CUDA_VISIBLE_DEVICES": chosen})
    assert gpus is not None
    assert len(gpus) == visible


def test_visible_gpus_are_in_the_order_workers_count_them(machine: Machine) -> None:
    add_gpus(machine, 4)
    gpus = visible_gpus(RealFiles(str(machine.root)), {"CUDA_VISIBLE_DEVICES": "3,GPU-a0"})
    assert gpus is not None
    assert [gpu.pci_address for gpu in gpus] == ["0000:13:00.0", "0000:10:00.0"]


@pytest.mark.parametrize("chosen", ["MIG-GPU-1/2/3", "0,MIG-7", "1,1"])
def test_what_only_cuda_can_count_is_asked_of_torch(machine: Machine, chosen: str) -> None:
    add_gpus(machine, 4)
    torch = Torch(5)
    assert count(machine, "gpu", torch, CUDA_VISIBLE_DEVICES=chosen) == 5
    assert torch.asked == ["gpu"]


def test_a_gpu_cut_into_slices_is_asked_of_torch(machine: Machine) -> None:
    add_gpus(machine, 2)
    machine.write("/proc/driver/nvidia/capabilities/gpu1/mig/gi7/access")
    assert count(machine, "gpu", Torch(3)) == 3


def test_a_container_that_lists_gpus_it_may_not_open_is_asked_of_torch(machine: Machine) -> None:
    add_gpus(machine, 8)
    machine.forbid("/dev/nvidia5", os.R_OK | os.W_OK)
    assert count(machine, "gpu", Torch(7)) == 7


def test_a_torch_without_cuda_is_asked_and_auto_falls_back_to_the_cpus(machine: Machine) -> None:
    add_gpus(machine, 2)
    Path(f"{machine.root}/site/torch/lib/libtorch_cuda.so").unlink()
    assert count(machine, "auto", Torch(0)) == 6
    with pytest.raises(UserError, match="no CUDA device on this node"):
        count(machine, "gpu", Torch(0))


def test_another_python_s_torch_is_asked(machine: Machine) -> None:
    add_gpus(machine, 2)
    assert count(machine, "gpu", Torch(1), PYTHON_EXEC="/opt/python") == 1


@pytest.mark.parametrize("trace", ["/dev/kfd", "/dev/dri/renderD128", "/dev/accel/accel0", "/dev/davinci_manager"])
def test_accelerators_of_others_are_asked_of_torch(machine: Machine, trace: str) -> None:
    machine.write(trace)
    torch = Torch(4)
    assert count(machine, "auto", torch) == 4
    assert torch.asked == ["auto"]


def test_auto_with_all_gpus_hidden_is_the_cpus(machine: Machine) -> None:
    add_gpus(machine, 2)
    assert count(machine, "auto", Torch(0), CUDA_VISIBLE_DEVICES="") == 6


def test_gpu_on_a_node_without_one_is_refused(machine: Machine) -> None:
    with pytest.raises(UserError) as caught:
        count(machine, "gpu")
    assert str(caught.value) == ("--nproc-per-node gpu: no CUDA device on this node; give a number, or use cpu or auto")


def test_hidden_gpus_are_refused_with_the_variable_that_hides_them(machine: Machine) -> None:
    add_gpus(machine, 2)
    with pytest.raises(UserError, match="no CUDA device on this node with CUDA_VISIBLE_DEVICES='-1'; "):
        count(machine, "gpu", CUDA_VISIBLE_DEVICES="-1")


def test_xpu_is_always_asked_of_torch(machine: Machine) -> None:
    assert count(machine, "xpu", Torch(2)) == 2
    with pytest.raises(UserError, match="no Intel GPU that torch can use"):
        count(machine, "xpu", Torch(0))


# --- asking torch, here played by small programs --------------------------------------------------------------------


def stand_in(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_torch_s_answer_is_found_among_other_output(tmp_path: Path) -> None:
    assert ask_torch(stand_in(tmp_path, "echo hello; echo robust-run counts 12; echo bye"), "gpu") == 12


@pytest.mark.parametrize("kind", ["gpu", "xpu", "auto"])
def test_the_question_is_python_that_prints_the_answer(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "site" / "torch"
    folder.mkdir(parents=True)
    count_three = "import types\npart = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 3)\n"
    (folder / "__init__.py").write_text(f"{count_three}cuda = xpu = accelerator = part\n")
    python = stand_in(tmp_path, f'PYTHONPATH="{tmp_path}/site" exec {system_world({}).executable} "$@"')
    assert ask_torch(python, kind) == 3


def test_a_python_without_torch_is_named_with_the_way_out(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    with pytest.raises(UserError) as caught:
        ask_torch(python, "gpu")
    assert str(caught.value) == (
        "cannot count devices with torch (ModuleNotFoundError: No module named 'torch');"
        " give --nproc-per-node a number instead of 'gpu'"
    )


def test_a_python_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot run '/nowhere/python' to count devices"):
        ask_torch("/nowhere/python", "auto")


def test_the_real_world_can_be_asked(tmp_path: Path) -> None:
    world: World = system_world({"PYTHON_EXEC": stand_in(tmp_path, "echo robust-run counts 2")})
    assert world.ask_torch("xpu") == 2
