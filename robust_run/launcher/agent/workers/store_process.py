"""The process that hosts the TCPStores of a job's attempts, one at a time. Runs as a child of the agent.

Protocol over one Unix socket, a message a line: `serve N ADDRESS PORT` with a listening socket attached (the store of
attempt N listens there; the one before is dropped), answered by `serving N` or `failed N REASON`. The end of the socket is
the end of us.
Only this process imports torch, and only the part of it that holds the store: a third of the time of `import torch`.
"""

from __future__ import annotations

import importlib.machinery
import os
import socket
import sys
import types
from typing import Any

from robust_run.health.diagnostics.torch_store import listening
from robust_run.launcher.agent.workers.helper_signals import leave_the_end_to_the_agent


def load_store_class() -> Any:
    """Return torch's TCPStore class, loading as little of torch as this version of it allows.

    The extension module is enough; a stand-in for the package around it saves two thirds of the time. If a torch release
    does not go along with that, the whole of torch is imported.
    """
    imported = getattr(sys.modules.get("torch.distributed"), "TCPStore", None)
    if imported is not None:  # this process is a fork of a warm one
        return imported
    try:
        return _load_extension_only()
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
            del sys.modules[name]
        from torch.distributed import TCPStore

        return TCPStore


def _load_extension_only() -> Any:
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.origin or os.environ.get("ROBUST_FULL_TORCH_STORE") == "1":
        raise ImportError("torch is not importable by path")
    root = os.path.dirname(spec.origin)
    package, distributed = types.ModuleType("torch"), types.ModuleType("torch.distributed")
    package.__path__ = [root]
    distributed.__path__ = [os.path.join(root, "distributed")]
    package.distributed = distributed  # type: ignore[attr-defined]
    sys.modules.update({"torch": package, "torch.distributed": distributed})
    extension: Any = importlib.import_module("torch._C")
    extension._c10d_init()
    return importlib.import_module("torch._C._distributed_c10d").TCPStore


def serve(control: socket.socket) -> None:
    """Host stores until the agent closes the socket."""
    store_class: Any = None
    store: Any = None
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not data:
            return
        _, attempt, address, port = data.decode().split()
        try:
            store_class = store_class or load_store_class()
            store = None
            store = listening(store_class, address, int(port), descriptors[0])  # noqa: F841 - it lives as long as this name
        except BaseException as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            control.sendall(f"failed {attempt} {reason}\n".encode())
            return
        control.sendall(f"serving {attempt}\n".encode())


def main(descriptor: int) -> None:
    """Serve on an inherited descriptor, then leave without tearing torch down."""
    leave_the_end_to_the_agent()
    serve(socket.socket(fileno=descriptor))
    os._exit(0)
