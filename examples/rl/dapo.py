"""DAPO in a job of three roles: a tiny GPT learns sums from nothing, while rollouts may die at any time.

    robust-run --roles examples/rl/dapo.toml

A prompt goes trainer -> (queue "prompts") -> rollout -> ("samples") -> reward -> ("scored") -> trainer. Which of the three this
process is, robust-run says. `--synchronous` trains on responses of the newest policy alone, in the order of their problems: it
ends with the same weights, bit for bit, whatever died.
"""

from __future__ import annotations

import argparse

import reward
import rollout
import torch
import trainer
from weights import run_folder

from robust_run import roles


def main() -> None:
    """Do what this worker's role does."""
    parser = argparse.ArgumentParser(description="DAPO in a job of three roles.")
    parser.add_argument("--synchronous", action="store_true", help="train on the newest policy's responses alone")
    parser.add_argument("--steps", type=int, default=trainer.Settings().steps, help="end after so many at most")
    parser.add_argument("--target", type=float, default=trainer.Settings().target, help="end at this mean reward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, default=trainer.Settings().every, help="steps from checkpoint to checkpoint"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    role = roles.me().role
    if role == "trainer":
        trainer.main(trainer.Settings(**vars(args)), run_folder())
    elif role == "rollout":
        rollout.main()
    else:
        reward.main()


if __name__ == "__main__":
    main()
