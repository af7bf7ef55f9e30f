"""What a worker notes of its start: a real interpreter, with a torch as far as that needs one; who reads it trusts nothing."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.tracer.files import marks, steps
from robust_run.tracer.files.arming import ARM_FOLDER, arm_environment

OPTIMIZER = """
import torch
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
FAKE = {
    "torch/__init__.py": "__version__ = '2.13.0+cpu'\nfrom torch import compiler, optim\nfrom torch.serialization import load\n",
    "torch/compiler.py": "def is_dynamo_compiling():\n    return False\n",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
    "torch/optim/optimizer.py": OPTIMIZER,
    "torch/serialization.py": (
        "import time\ndef load(seconds):\n    time.sleep(seconds)\n    import late\n    return 'loaded'\n"
    ),
    "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import init_process_group\n",
    "torch/distributed/distributed_c10d.py": "import time\ndef init_process_group(seconds):\n    time.sleep(seconds)\n",
    "torch/distributed/checkpoint/__init__.py": "from torch.distributed.checkpoint.state_dict_loader import load\n",
    "torch/distributed/checkpoint/state_dict_loader.py": (
        "import time\ndef load(state, *, storage_reader=None):\n    time.sleep(0.03)\n"
    ),
    "slow.py": "import time\ntime.sleep(0.05)\nimport slower\n",
    "slower.py": "import time\ntime.sleep(0.05)\n",
    "late.py": "import time\ntime.sleep(0.02)\n",
    "broken.py": "raise ValueError('not this one')\n",
}


STARTUP = os.path.join(ARM_FOLDER, "startup")


class Worker:
    """Runs programs as the launcher would: armed, with a steps file and a marks file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps_file = str(folder / "steps")
        steps.create(self.steps_file)
        steps.create_marks(self.steps_file)
        for name, text in FAKE.items():
            path = folder / "fake" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env["PYTHONPATH"] = str(folder / "fake")

    def python(self, program: str, *, armed: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **more}
        env |= arm_environment(env, self.steps_file) if armed else {}
        path = self.folder / "program.py"
        path.write_text(program)
        argv = [sys.executable, str(path)]
        return subprocess.run(argv, env=env, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)

    @property
    def noted(self) -> marks.Marks:
        found = marks.read(f"{self.steps_file}.marks")
        assert found is not None
        return found

    @property
    def parts(self) -> list[marks.StartMark]:
        """The spans, those of one kind in a row as one: a busy machine makes pauses within what is done at one go."""
        found: list[marks.StartMark] = []
        for span in self.noted.spans:
            began_s = found.pop().began_s if found and found[-1].kind == span.kind else span.began_s
            found.append(marks.StartMark(span.kind, began_s, span.ended_s))
        return found

    @property
    def kinds(self) -> list[str]:
        return [marks.KINDS[span.kind] for span in self.parts]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


START = """
import torch, torch.distributed as dist
import slow
dist.init_process_group(0.05)
print(torch.load(0.05))
optimizer = torch.optim.Optimizer()
optimizer.step()
import slower
"""


def test_imports_the_first_group_and_a_checkpoint_are_noted_in_order(worker: Worker) -> None:
    done = worker.python(START)
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\n", "")
    assert worker.kinds == ["imports", "init", "torch.load"]
    imports, init, load = worker.parts
    assert imports.ended_s - imports.began_s >= 0.1, "what a module imports belongs to it"
    assert init.ended_s - init.began_s >= 0.05
    assert load.ended_s - load.began_s >= 0.07, "an import within is part of loading"
    assert worker.noted.armed_s <= imports.began_s
    assert worker.noted.open_kind == 0


def test_after_the_first_step_imports_are_as_they_were(worker: Worker) -> None:
    program = """
    import sys, torch
    system = sys.modules["_frozen_importlib"]
    before = system._find_and_load.__code__.co_argcount
    torch.optim.Optimizer().step()
    import slow
    print(before, system._find_and_load.__code__.co_argcount)
    """
    assert worker.python("\n".join(line[4:] for line in program.splitlines())).stdout == "0 2\n"
    count = steps.read(worker.steps_file)
    assert count is not None and count.first_step_monotonic_s is not None
    assert worker.noted.spans[-1].ended_s <= count.first_step_monotonic_s
    assert worker.kinds == ["imports"]


def test_what_goes_on_can_be_seen_while_it_does(worker: Worker) -> None:
    worker.python(
        "import torch, os\ntorch.load.__wrapped__\ndef die(*_): os._exit(0)\nimport time; time.sleep = die\ntorch.load(1)"
    )
    assert marks.KINDS[worker.noted.open_kind] == "torch.load"
    assert worker.noted.opened_s >= worker.noted.armed_s


@pytest.mark.parametrize("where", ["state, storage_reader=reader", "state, storage_reader=None"])
def test_dcp_says_whose_reader_it_was(worker: Worker, where: str) -> None:
    program = f"""
import torch.distributed.checkpoint as dcp
Ours = type("RobustReader", (), {{"__module__": "robust_run.ckpt_io.dcp.reader"}})
reader, state = Ours(), {{}}
dcp.load({where})
"""
    assert worker.python(program).stderr == ""
    assert worker.kinds[-1] == ("robust-run" if "=reader" in where else "DCP")


FAILING = "import sys\ntry:\n    import {name}\nexcept Exception:\n    import traceback; traceback.print_exc()\nimport {name}\n"


@pytest.mark.parametrize("name", ["not_there", "broken", "broken.inside"])
def test_a_failing_import_looks_as_it_does_without_us(worker: Worker, name: str) -> None:
    program = FAILING.format(name=name)
    armed, plain = worker.python(program), worker.python(program, armed=False)
    assert (armed.returncode, armed.stderr) == (plain.returncode, plain.stderr) != (0, "")


def test_warnings_of_imports_name_the_line_that_they_did(worker: Worker) -> None:
    (worker.folder / "fake/old.py").write_text("import warnings\nwarnings.warn('old', UserWarning, stacklevel=2)\n")
    armed, plain = worker.python("import old\n"), worker.python("import old\n", armed=False)
    assert armed.stderr == plain.stderr
    assert "program.py:1" in armed.stderr


def test_forked_children_and_threads_note_nothing(worker: Worker) -> None:
    program = """
import os, threading, time
print(time.monotonic())
pid = os.fork()
if pid == 0:
    import slow
    os._exit(0)
os.waitpid(pid, 0)
thread = threading.Thread(target=__import__, args=("slower",))
thread.start(); thread.join()
print("end")
"""
    began_s, end = worker.python(program).stdout.split()
    assert end == "end"
    assert not [span for span in worker.noted.spans if span.ended_s > float(began_s)]


def test_a_program_that_imports_for_ever_leaves_room_for_a_checkpoint(worker: Worker) -> None:
    for number in range(80):
        (worker.folder / f"fake/m{number}.py").write_text("import time; time.sleep(0.002)\n")
    program = "import importlib, time, torch\n"
    program += "for n in range(80):\n    importlib.import_module(f'm{n}'); time.sleep(0.021)\ntorch.load(0.01)\n"
    assert worker.python(program).stderr == ""
    assert worker.kinds[-1] == "torch.load"
    assert len(worker.kinds) <= marks.MOST_SPANS


def test_without_a_file_nothing_is_noted_and_nothing_is_hooked(worker: Worker) -> None:
    os.unlink(f"{worker.steps_file}.marks")
    program = "import sys, torch\ncode = sys.modules['_frozen_importlib']._find_and_load.__code__\n"
    program += "print(code.co_argcount, hasattr(torch.load, '__wrapped__'))"
    assert worker.python(program).stdout == "2 False\n"


@pytest.mark.parametrize("content", [b"", b"RBMARKS\n", b"x" * 2048])
def test_a_file_that_is_none_costs_a_line_and_no_job(worker: Worker, content: bytes) -> None:
    Path(f"{worker.steps_file}.marks").write_bytes(content)
    done = worker.python(START)
    assert (done.returncode, done.stdout) == (0, "loaded\n")
    assert done.stderr.startswith("robust-run: timing the start is off in this worker: ")
    assert done.stderr.count("\n") == 1


def test_reader_and_writer_agree_on_the_format(worker: Worker) -> None:
    program = f"import json, sys; sys.path.insert(0, {STARTUP!r}); import marks\n"
    program += "names = ['MAGIC', 'VERSION', 'FILE_BYTES', 'PID_CELL', 'ARMED_CELL', 'COUNT_CELL', 'OPEN_CELL', 'OPENED_CELL']\n"
    program += "names += ['SPANS_CELL', 'SPAN_CELLS', 'MOST_SPANS']\nprint(json.dumps([str(getattr(marks, n)) for n in names]))\n"
    names = (
        "MAGIC VERSION FILE_BYTES PID_CELL ARMED_CELL COUNT_CELL OPEN_CELL OPENED_CELL SPANS_CELL SPAN_CELLS MOST_SPANS"
    )
    seen = json.loads(worker.python(program, armed=False).stdout)
    assert seen == [str(getattr(marks, name)) for name in names.split()]


def written(path: Path, *cells: object) -> None:
    """A marks file with these cells after the magic; floats are times."""
    body = b"".join(struct.pack("=d" if isinstance(cell, float) else "=Q", cell) for cell in cells)
    path.write_bytes((marks.MAGIC + body).ljust(marks.FILE_BYTES, b"\0"))


@pytest.mark.parametrize(
    "cells",
    [
        (2, 1, 5.0, 0),
        (1, 0, 5.0, 0),
        (1, 1, float("nan"), 0),
    ],
)
def test_what_is_no_such_file_is_nothing(tmp_path: Path, cells: tuple[object, ...]) -> None:
    path = tmp_path / "marks"
    written(path, *cells)
    assert marks.read(str(path)) is None
    assert marks.read(str(tmp_path / "none")) is None
    path.write_bytes(b"short")
    assert marks.read(str(path)) is None


def test_spans_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    spans = (
        1,
        6.0,
        7.0,
        99,
        7.0,
        8.0,
        2,
        6.5,
        9.0,
        2,
        8.0,
        7.0,
        3,
        float("nan"),
        9.0,
        3,
        8.0,
        9.0,
        3,
        9.0,
        float("inf"),
    )
    written(path, 1, 1, 5.0, 1 << 60, 77, float("nan"), 0, *spans)
    found = marks.read(str(path))
    assert found is not None
    assert [tuple(getattr(span, name) for name in ("kind", "began_s", "ended_s")) for span in found.spans] == [
        (1, 6.0, 7.0),
        (3, 8.0, 9.0),
    ]
    assert (found.open_kind, found.opened_s) == (0, 0.0)
