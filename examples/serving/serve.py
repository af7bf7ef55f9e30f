"""A tiny mixture of experts is served by a job of three roles: attention and experts are apart, and any of them may die.

    robust-run --roles examples/serving/serving.toml

A request goes frontend -> (queue "requests") -> attention -> (queue "answers") -> frontend; tokens go from attention members
straight to expert members and back, in every layer. Which of the three this process is, robust-run says. Answers lie in the run's
folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os

import attention
import expert
import frontend

from robust_run import roles


def run_folder() -> str:
    """Return the run directory of the whole job."""
    return os.path.dirname(os.path.dirname(os.environ["ROBUST_RUN_DIR"]))


def main() -> None:
    """Do what this worker's role does."""
    parser = argparse.ArgumentParser(description="A tiny mixture of experts in a job of three roles.")
    parser.add_argument("--copies", type=int, default=2, help="members that hold each expert")
    parser.add_argument("--listen", default="127.0.0.1", help='where experts listen; "": everywhere, for several nodes')
    parser.add_argument("--requests", type=int, default=200, help="how many the frontend has")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    args = parser.parse_args()
    role = roles.me().role
    if role == "expert":
        asyncio.run(expert.main(args.copies, args.listen))
    elif role == "attention":
        asyncio.run(attention.main(args.copies))
    else:
        frontend.main(args.requests, args.seed, run_folder())


if __name__ == "__main__":
    main()
