"""T-PPO: PPO on windows of responses, so that no step waits for the longest one. Compared with PPO in the same setting.

    python examples/rl/tppo.py --compare           # both, three seeds; prints ratios
    robust-run --roles examples/rl/tppo.toml       # T-PPO as a job of three roles (windowed.py)

After "Truncated Proximal Policy Optimization" (arXiv 2506.15050): a step generates one window; unfinished responses go on in the
next step. The policy learns from the tokens of the newest window alone, by extended GAE; the value head learns from finished
responses alone, from all their tokens and what came out. So a token trains each of them in one step only. PPO is the same program
with a window as long as the longest response.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from statistics import fmean

import strokes
import torch
import windowed
from learner import SLOTS, WINDOW, Learner
from windows import Slot, Spent, go_on

from robust_run import roles

SMOOTH = 200
"""Mean reward is that of so many finished responses."""


@dataclass(frozen=True)
class Outcome:
    """What a training took to reach the reward."""

    reward: float
    steps: int
    tokens: int
    rounds: int
    rollout_s: float
    whole_s: float


def train(seed: int, window: int, target: float, most_steps: int) -> Outcome:
    """Train until the mean reward is reached, or for so many steps."""
    learner, chance, spent = Learner(seed), torch.Generator().manual_seed(seed), Spent()
    number, recent, rollout_s, began_s = 0, [0.0], 0.0, time.perf_counter()
    slots: list[Slot] = []
    steps = 0
    while steps < most_steps:
        steps += 1
        slots = [slot for slot in slots if not slot.is_finished]
        while len(slots) < SLOTS:
            slots.append(Slot(strokes.problem(number, seed)))
            number += 1
        at_s = time.perf_counter()
        go_on(learner.model, slots, window, chance, spent)
        rollout_s += time.perf_counter() - at_s
        recent = [*recent, *(slot.reward for slot in slots if slot.reward is not None)][-SMOOTH:]
        if len(recent) == SMOOTH and fmean(recent) >= target:
            break
        learner.learn(slots)
    return Outcome(fmean(recent), steps, spent.tokens, spent.rounds, rollout_s, time.perf_counter() - began_s)


def compare(seeds: int, target: float, most_steps: int) -> int:
    """Train both ways with several seeds, print what each took and the ratios. Returns an exit code."""
    print(f"{'':8}{'seed':>5}{'reward':>8}{'steps':>7}{'tokens':>9}{'rounds':>8}{'rollout s':>11}{'all s':>8}")
    found: dict[str, list[Outcome]] = {"PPO": [], "T-PPO": []}
    for seed in range(seeds):
        for name, window in (("PPO", strokes.MOST_TOKENS), ("T-PPO", WINDOW)):
            one = train(seed, window, target, most_steps)
            found[name].append(one)
            print(
                f"{name:8}{seed:5}{one.reward:8.3f}{one.steps:7}{one.tokens:9}{one.rounds:8}{one.rollout_s:11.1f}{one.whole_s:8.1f}",
                flush=True,
            )
    print("PPO / T-PPO, mean of seeds (least to most):")
    for what, of in (
        ("generated tokens", "tokens"),
        ("rounds (time of rollouts, slots always as many)", "rounds"),
        ("rollout seconds here", "rollout_s"),
    ):
        ratios = [getattr(ppo, of) / getattr(tppo, of) for ppo, tppo in zip(found["PPO"], found["T-PPO"], strict=True)]
        print(f"  {what:<50}{fmean(ratios):5.2f}x  ({min(ratios):.2f} to {max(ratios):.2f})")
    missed = [name for name, outcomes in found.items() if min(each.reward for each in outcomes) < target]
    if missed:
        print(f"{', '.join(missed)} did not reach a reward of {target} in {most_steps} steps: its ratios mean little")
    return 1 if missed else 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="T-PPO, compared with PPO in the same setting.")
    parser.add_argument("--compare", action="store_true", help="train both ways, and print ratios")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=3000, help="give up after so many")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if roles.is_active():
        windowed.main(roles.me().role, args.target, args.steps)
        return 0
    if args.compare:
        return compare(args.seeds, args.target, args.steps)
    print(train(0, WINDOW, args.target, args.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
