"""torch's c10d rendezvous as `control_plane.py` compares with it: the store, or a process with many agents' handlers.

    python bench/rendezvous_agents.py store                       prints its port, serves until it is killed
    python bench/rendezvous_agents.py agents PORT SHARE ALL LIMIT  joins with SHARE of ALL handlers, a thread each

The second prints `ready`, waits for a line, and prints `done` when each of its handlers has its rank.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def serve() -> None:
    """Host the store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1))
    print(store.port, flush=True)
    sys.stdin.read()


def join(port: int, share: int, everybody: int, limit_s: float) -> None:
    """Meet the others."""
    handlers = [_handler(port, everybody, limit_s) for _ in range(share)]
    failures: list[BaseException] = []

    def meet(handler: Any) -> None:
        try:
            handler.next_rendezvous()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=meet, args=(handler,), daemon=True) for handler in handlers]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("failed" if failures else "done", flush=True)
    sys.stdin.read()  # a handler that goes would begin another round


def _handler(port: int, everybody: int, limit_s: float) -> Any:
    parameters = RendezvousParameters(
        backend="c10d", endpoint=f"127.0.0.1:{port}", run_id="bench", min_nodes=everybody, max_nodes=everybody,
        local_addr="127.0.0.1", is_host=False, join_timeout=limit_s * 2, read_timeout=limit_s * 2,
    )  # fmt: skip
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


if __name__ == "__main__":
    if sys.argv[1] == "store":
        serve()
    else:
        join(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
