"""Trains scripts under torchrun with ranks that are forked: elastic.py MODULES FOLDER..., each folder with a train.py.

Two ranks that import a framework, and torchrun itself, cost more than they train. So the modules are imported once here, and for
each folder a fork is torchrun's agent, whose ranks are forks of it in turn: its options, rendezvous and environment are as ever.
What was said lies in the folder: `said` and, if it failed, `failed`.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path


def train() -> None:
    """Be a rank."""
    runpy.run_path("train.py", run_name="__main__")


def launch() -> None:
    """Do what torchrun does, but for the start of ranks."""
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    options = ("--nproc-per-node", "2", "--start-method", "fork", "--rdzv-backend", "c10d")
    config, _, _ = config_from_args(parse_args([*options, "--rdzv-endpoint", "localhost:0", "train.py"]))
    elastic_launch(config, train)()


def be_torchrun(folder: Path) -> None:
    """Train the script of a folder, in a fork; never return."""
    code = 1
    try:
        os.chdir(folder)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv[:] = ["train.py"]
        sys.path[0] = str(folder)
        launch()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if code:
            Path("failed").touch()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    modules, *folders = sys.argv[1:]
    gc.disable()  # a third of the CPU of the imports; and what forks look at, they copy
    for module in modules.split(","):
        import_module(module)
    gc.freeze()
    gc.enable()
    for each in folders:
        if not (child := os.fork()):
            be_torchrun(Path(each))
        os.waitpid(child, 0)
