"""Answers of NCCL's RAS, written by hand after its sources: JSON (2.28.7 and later) and text (2.24 and later)."""

from __future__ import annotations

import json
from typing import Any

HASH = 0x9F3C_21D4_5566_7788


def rank(number: int, counts: dict[str, int] | None = None, *, pid: int = 0, **status: Any) -> dict[str, Any]:
    fields = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    } | status
    kinds = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 100, "Send": 0, "Recv": 0}
    return {
        "rank": number,
        "host": f"10.0.0.{1 + number // 2}",
        "pid": pid or 4000 + number,
        "cuda_dev": number % 2,
        "nvml_dev": number % 2,
        "status": fields,
        "collective_counts": kinds | (counts or {}),
    }


def lost(number: int, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    return {
        "rank": number,
        "host": "10.0.0.2",
        "pid": 4000 + number,
        "cuda_dev": 0,
        "nvml_dev": 0,
        "status": {"unresponsive": unresponsive, "considered_dead": dead},
    }


def communicator(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = (), hash_: int = HASH) -> dict[str, Any]:
    return {
        "hash": hex(hash_),
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": list(ranks),
        "missing_ranks": list(missing),
    }


def answer(*communicators: dict[str, Any], timeouts: int = 0) -> bytes:
    return json.dumps(
        {
            "nccl_version": "2.29.7",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-11-21 18:00:00",
            "communicators_count": len(communicators),
            "communicators": list(communicators),
            "ras": {"collection_time_sec": 0.004, "timeouts_count": timeouts},
        },
        indent=2,
    ).encode()


TEXT_HEAD = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""

TEXT_WELL = (
    TEXT_HEAD + "    0         1         2         2         4         4   RUNNING      OK\n\nErrors\n======\n\n"
)
TEXT_WELL += "Warnings\n========\n\n"

TEXT_BEHIND = (
    TEXT_HEAD
    + """    0         1         2         2         4         4   RUNNING  MISMATCH
    1         2         1         2         2         4   RUNNING      OK

Errors
======

Warnings
========

#0-0 (9f3c21d455667788) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 100
  Rank 2 has launched up to operation 99 -- GPU 0 managed by process 4002 on node 10.0.0.2
  Communicator ranks have different AllGather operation counts
  2 ranks have launched up to operation 7
  2 ranks have not launched any operations
  Rank 2 -- GPU 0 managed by process 4002 on node 10.0.0.2
  Rank 3 -- GPU 1 managed by process 4003 on node 10.0.0.2

"""
)

TEXT_SILENT = (
    TEXT_HEAD
    + """    0         1         1         2         4         2   RUNNING  INCOMPLETE,ERROR

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4003 on node 10.0.0.2 managing GPU 1

#0-0 (9f3c21d455667788) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 1 managed by process 4003 on node 10.0.0.2

#0-0 (9f3c21d455667788) ERROR
  Asynchronous error on 1 rank
  Rank 1 reported Remote process error -- GPU 1 managed by process 4001 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
)

TEXT_GOING = (
    TEXT_HEAD
    + """    0         1         2         2         4         4     ABORT  MISMATCH

Errors
======

Warnings
========

#0-0 (9f3c21d455667788) MISMATCH
  Communicator ranks have different status
  2 ranks have status RUNNING
  Rank 2 has status ABORT -- GPU 0 managed by process 4002 on node 10.0.0.2
  Rank 3 has status NOCOMM -- GPU 1 managed by process 4003 on node 10.0.0.2

"""
)
