"""DLRover's flash checkpoint, for `memory_ckpt.py`: a process in an environment of its own that saves when it is told.

It is given the size of the state and answers each line of standard input, a step, with a line: seconds until the call returned.
DLRover's own process, which holds the memory when no `dlrover-run` does, is its child.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time

from memory_states import state_of


def main() -> None:
    """Serve until standard input ends."""
    from dlrover.python.common import multi_process
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    logging.disable(logging.WARNING)
    state = state_of(int(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="memory-peer-") as folder:
        multi_process.SOCKET_TMP_DIR = f"{folder}/"  # else sockets of one that was killed would be taken for its own
        checkpointer = DdpCheckpointer(folder)
        print("ready", flush=True)
        for line in sys.stdin:
            begun_s = time.perf_counter()
            checkpointer.save_checkpoint(int(line), state, storage_type=StorageType.MEMORY)
            print(time.perf_counter() - begun_s, flush=True)
    os._exit(0)  # it has threads that never end


if __name__ == "__main__":
    main()
