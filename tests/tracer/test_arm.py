"""What an armed worker's program sees: exactly what it would see unarmed. And what is counted of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from armed_programs import Worker
from fake_torch import FAKE_TORCH

from robust_run.tracer.files import ring, ring_format, steps
from robust_run.tracer.files.arming import ARM_FOLDER, arm_environment

OFF = "robust-run: step counting is off in this worker: "

LOOK_AROUND = """
import json, os, subprocess, sys
child = subprocess.check_output(
    [sys.executable, "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.path]))"]
)
print(json.dumps({
    "environment": dict(os.environ),
    "path": sys.path,
    "importers": sorted(sys.path_importer_cache),
    "argv": sys.argv,
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "child": json.loads(child),
}))
"""

LOOP = """
from torch.optim import Optimizer
optimizer = Optimizer()
for _ in range(5):
    optimizer.step()
print("done")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


@pytest.mark.parametrize("pythonpath", [None, "", "somewhere", "/one:/two", "/one::/two", ":"])
def test_the_program_and_its_children_see_an_untouched_world(worker: Worker, pythonpath: str | None) -> None:
    if pythonpath is not None:
        worker.env["PYTHONPATH"] = pythonpath
    armed, plain = worker.python(LOOK_AROUND), worker.python(LOOK_AROUND, armed=False)
    assert (armed.returncode, armed.stderr) == (0, "")
    assert json.loads(armed.stdout) == json.loads(plain.stdout)


def test_a_module_run_with_dash_m_sees_an_untouched_world(worker: Worker) -> None:
    worker.write("program.py", LOOK_AROUND)
    argv = (sys.executable, "-m", "program")
    assert json.loads(worker.run(*argv).stdout) == json.loads(worker.run(*argv, armed=False).stdout)


def test_variables_that_are_not_for_arming_stay(worker: Worker) -> None:
    worker.env.update(ROBUST_RUN_ID="r1", ROBUST_TRACE="1")
    seen = json.loads(worker.python(LOOK_AROUND).stdout)["environment"]
    assert {name for name in seen if name.startswith("ROBUST_")} == {"ROBUST_RUN_ID", "ROBUST_TRACE"}


def test_the_users_sitecustomize_runs_once_as_itself(worker: Worker) -> None:
    theirs = worker.write("site/sitecustomize.py", "import sys\nprint('theirs', __name__, __file__, len(sys.path))\n")
    worker.env["PYTHONPATH"] = str(worker.folder / "site")
    program = "import sitecustomize, sys\nprint(sitecustomize.__file__, sitecustomize.__spec__.origin)\n"
    armed, plain = worker.python(program), worker.python(program, armed=False)
    assert (armed.stdout, armed.stderr) == (plain.stdout, plain.stderr)
    assert armed.stdout.count("theirs") == 1
    assert theirs in armed.stdout


@pytest.mark.parametrize(
    "text", ["1 / 0", "import not_there", "raise ImportError('no')", "raise SystemExit(7)", "def ("]
)
def test_a_failing_sitecustomize_fails_as_ever(worker: Worker, text: str) -> None:
    worker.write("site/sitecustomize.py", text)
    worker.env["PYTHONPATH"] = str(worker.folder / "site")
    armed, plain = worker.python("print('ran')"), worker.python("print('ran')", armed=False)
    assert (armed.returncode, armed.stdout) == (plain.returncode, plain.stdout)
    if plain.returncode == 0:
        assert armed.stderr == plain.stderr != ""


def test_without_a_sitecustomize_ours_cannot_be_imported(worker: Worker) -> None:
    program = "try:\n    import sitecustomize\nexcept ImportError as error:\n    print(error.name)\n"
    armed = worker.python(program)
    plain = worker.python(program, armed=False)
    assert armed.stdout == plain.stdout
    assert ARM_FOLDER not in armed.stdout


def test_steps_of_a_real_training_loop_are_counted_and_those_of_children_are_not(worker: Worker) -> None:
    program = """
import multiprocessing, os, torch
from torch.utils.data import DataLoader, Dataset

def optimizer():
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)

class StepsInEveryItem(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        optimizer().step()
        return float(index)

if __name__ == "__main__":
    own = optimizer()
    for batch in DataLoader(StepsInEveryItem(), num_workers=2):
        own.step()
    spawned = multiprocessing.get_context("spawn").Process(target=StepsInEveryItem().__getitem__, args=(0,))
    spawned.start()
    spawned.join()
    for _ in range(3):
        own.step()
    print(os.getpid(), spawned.exitcode)
"""
    result = worker.python(program)
    count = steps.read(worker.steps_file)
    assert result.returncode == 0, result.stderr
    assert count is not None
    assert (f"{count.pid} 0\n", count.steps) == (result.stdout, 7)
    assert OFF not in result.stderr


def test_a_compiled_optimizer_runs_unbroken_and_an_eager_one_beside_it_is_counted(worker: Worker) -> None:
    program = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

model = torch.nn.Linear(4, 4)
custom, standard = Plain(model.parameters()), torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
whole = torch.compile(custom.step, backend="eager", fullgraph=True)  # any graph break would raise
parts = torch.compile(standard.step, backend="eager")
compiled_model = torch.compile(model, backend="eager", fullgraph=True)
for _ in range(3):
    compiled_model(torch.ones(2, 4)).sum().backward()
    whole()
    parts()
before = model.weight.clone()
for _ in range(4):
    standard.step()
print(bool((before != model.weight).any()))
"""
    result = worker.python(program, options=("-W", "ignore"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "True\n"
    assert worker.counted == 4
    assert OFF not in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "shorter than 72 bytes"),
        (b"x" * 72, "not a steps file of version"),
        (steps.MAGIC + b"\xff" * 64, "not a steps file of version"),
    ],
)
def test_a_broken_steps_file_costs_one_line_and_nothing_else(
    worker: Worker, content: bytes | None, reason: str
) -> None:
    worker.use_fake_torch()
    path = Path(worker.steps_file)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    result = worker.python(LOOP)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert result.stderr.startswith(OFF)
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_torch_without_the_hook_and_one_too_old_cost_one_line(worker: Worker) -> None:
    without = FAKE_TORCH["torch/optim/optimizer.py"].replace("def register_optimizer_step_post_hook", "def other")
    worker.use_fake_torch(**{"torch/optim/optimizer.py": without})
    result = worker.python(LOOP)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (0, "done\n", 1)
    worker.use_fake_torch(**{"torch/__init__.py": FAKE_TORCH["torch/__init__.py"].replace("2.13", "2.5")})
    result = worker.python(LOOP)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert result.stderr == f"{OFF}RuntimeError: torch 2.5.0+cpu is older than 2.6\n"


def test_a_torch_that_cannot_be_imported_raises_what_it_raises(worker: Worker) -> None:
    worker.use_fake_torch(**{"torch/optim/optimizer.py": "raise OSError('libtorch.so is broken')\n"})
    result = worker.python("try:\n    import torch\nexcept OSError as error:\n    print(error)\n")
    assert (result.stdout, result.stderr) == ("libtorch.so is broken\n", "")


def test_robust_trace_0_counts_nothing(worker: Worker) -> None:
    worker.use_fake_torch()
    armed = arm_environment(worker.env, worker.steps_file)
    worker.env.update(armed, ROBUST_TRACE="0")
    result = worker.python(LOOP, armed=False)
    assert (result.returncode, result.stdout, result.stderr, worker.counted) == (0, "done\n", "", 0)


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_ignores_the_arming_runs_uncounted(worker: Worker, option: str) -> None:
    result = worker.python("print('done')", options=(option,))
    assert (result.returncode, result.stdout, result.stderr, worker.counted) == (0, "done\n", "", 0)


def test_python_options_that_look_at_imports_work(worker: Worker) -> None:
    worker.use_fake_torch()
    result = worker.python(LOOP, options=("-X", "importtime"))
    assert (result.returncode, result.stdout, worker.counted) == (0, "done\n", 5)
    assert "torch.optim.optimizer" in result.stderr
    result = worker.python(LOOP, options=("-X", "dev", "-W", "error"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_the_module_keeps_its_loader_and_can_be_reloaded(worker: Worker) -> None:
    worker.use_fake_torch()
    result = worker.python(
        """
import importlib, inspect, sys
from torch.optim import optimizer
print(type(optimizer.__loader__).__name__, "exec_module" in vars(optimizer.__spec__.loader))
print("class Optimizer" in inspect.getsource(optimizer))
print(any("Optimizer" in type(finder).__name__ for finder in sys.meta_path))
print(importlib.reload(optimizer) is optimizer)
"""
    )
    assert result.stderr == ""
    assert result.stdout.split() == ["SourceFileLoader", "False", "True", "False", "True"]


def test_a_program_that_only_imports_torch_leaves_the_file_to_the_one_that_trains(worker: Worker) -> None:
    worker.use_fake_torch()
    worker.write("program.py", LOOP)
    result = worker.run("/bin/sh", "-c", f"{sys.executable} -c 'import torch' && {sys.executable} program.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
    assert worker.counted == 5


def test_a_torch_that_is_imported_before_us_is_counted_too(worker: Worker) -> None:
    worker.use_fake_torch()
    worker.env["ROBUST_STEPS_FILE"] = worker.steps_file
    early = f"""
import runpy, torch
try:
    runpy.run_path({os.path.join(ARM_FOLDER, "sitecustomize.py")!r}, run_name="sitecustomize")
except (ImportError, KeyError):
    pass  # there is no other sitecustomize, and none to take away again
"""
    result = worker.python(early + LOOP, armed=False)
    assert (result.returncode, result.stdout, result.stderr, worker.counted) == (0, "done\n", "", 5)


def test_a_worker_that_is_killed_leaves_its_count(worker: Worker) -> None:
    worker.use_fake_torch()
    result = worker.python(LOOP + "import os\nos.kill(os.getpid(), 9)\n")
    assert (result.returncode, worker.counted) == (-9, 5)


def make_files(worker: Worker) -> Path:
    """Make what the launcher makes beside the steps file, and return where stacks go."""
    ring.create(f"{worker.steps_file}.ring", 0, 1)
    stacks = Path(f"{worker.steps_file}.stacks")
    stacks.touch()
    return stacks


ASK = f"""
import os, signal, sys, threading
def deep_inside():
    os.kill(os.getpid(), {ring.stacks_signal()})
deep_inside()
"""


def test_the_world_is_untouched_where_everything_is_armed(worker: Worker) -> None:
    make_files(worker)
    armed, plain = worker.python(LOOK_AROUND), worker.python(LOOK_AROUND, armed=False)
    assert (armed.returncode, armed.stderr) == (0, "")
    assert json.loads(armed.stdout) == json.loads(plain.stdout)


def test_a_signal_shows_the_stacks_of_any_python_program_even_one_that_keeps_the_interpreter(worker: Worker) -> None:
    stacks = make_files(worker)
    keep = f"import ctypes\ngetattr(ctypes.PyDLL(None), 'raise')({ring.stacks_signal()})\n"
    result = worker.python(ASK + keep)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert stacks.read_text().count("most recent call first") == 2
    assert "in deep_inside" in stacks.read_text()


def test_the_programs_own_handler_and_faulthandler_work_as_ever(worker: Worker) -> None:
    stacks = make_files(worker)
    own = f"import signal\nsignal.signal({ring.stacks_signal()}, lambda *_: print('own'))\n"
    result = worker.python(
        own + ASK + "import faulthandler\nfaulthandler.enable()\nfaulthandler.dump_traceback_later(60)\n"
        "faulthandler.cancel_dump_traceback_later()\nfaulthandler.dump_traceback()\n"
    )
    assert (result.returncode, result.stdout, stacks.read_text()) == (0, "own\n", "")
    assert "program.py" in result.stderr


def test_without_files_of_the_launcher_nothing_is_armed(worker: Worker) -> None:
    result = worker.python(f"import signal\nprint(signal.getsignal({ring.stacks_signal()}) == signal.SIG_DFL)")
    assert (result.stdout, result.stderr) == ("True\n", "")


@pytest.mark.parametrize("content", [b"", b"x" * ring_format.FILE_BYTES])
def test_a_broken_ring_costs_one_line_and_nothing_else(worker: Worker, content: bytes) -> None:
    make_files(worker)
    Path(f"{worker.steps_file}.ring").write_bytes(content)
    result = worker.python("import torch.distributed as dist\nprint(dist.is_initialized())")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (0, "False\n", 1)
    assert result.stderr.startswith("robust-run: tracing is off in this worker: ")


ALONE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
optimizer.step()
print(dist.init_process_group.__name__, dist.init_process_group.__module__)
"""


def test_a_torch_that_was_imported_before_us_is_traced_too(worker: Worker) -> None:
    make_files(worker)
    worker.env["ROBUST_STEPS_FILE"] = worker.steps_file
    early = f"""
import runpy, torch
try:
    runpy.run_path({os.path.join(ARM_FOLDER, "sitecustomize.py")!r}, run_name="sitecustomize")
except (ImportError, KeyError):
    pass  # there is no other sitecustomize, and none to take away again
"""
    result = worker.python(early + ALONE, armed=False, options=("-W", "ignore"))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "init_process_group torch.distributed.distributed_c10d\n"
    trace = ring.read(f"{worker.steps_file}.ring")
    assert trace is not None
    assert [op.op for op in trace.ops] == ["init_process_group", "all_reduce"]
    assert (trace.steps, len(trace.marks), worker.counted) == (1, 1, 1)


def test_robust_trace_0_switches_all_of_it_off(worker: Worker) -> None:
    stacks = make_files(worker)
    worker.env.update(arm_environment(worker.env, worker.steps_file), ROBUST_TRACE="0")
    program = f"import signal\nassert signal.getsignal({ring.stacks_signal()}) == signal.SIG_DFL\n"
    result = worker.python(program + ALONE, armed=False, options=("-W", "ignore"))
    assert (result.returncode, result.stderr, worker.counted, stacks.read_text()) == (0, "", 0, "")
    trace = ring.read(f"{worker.steps_file}.ring")
    assert trace is not None
    assert (trace.pid, trace.ops) == (0, ())
    assert not os.path.exists(f"{worker.steps_file}.sock")
