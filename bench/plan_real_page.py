"""The page of `plan_real.py`: what was measured beforehand, both sides of all jobs, and of each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from plan_real_held import WITHIN, Held, Sum, actions, mean_phases, strikes, summed
from plan_real_plan import Measured
from plan_real_words import BACK_S, HORIZON_S, NODES, NOT_RAISED, STANDBY

from robust_run.planning.words import Spread

BEGINNING = """# The plan against real jobs

Short real jobs of robust-run with random faults, and what `robust plan` says of each. Written by `bench/plan_real.py`.

"""
WHAT = f"""A job trains with gloo on {NODES} simulated hosts with {STANDBY} standbys (`tests/hosts.py`: own network, processes and
power), in steps of 0.1 s of sleep, and saves to storage every 20 to 80 steps; every second job keeps each step in memory,
too, with a copy on another host. It is looked at for {HORIZON_S:g} s. Its faults are drawn by the plan's own fault process
(`planning/faults.py`), at a rate a million times that of a cluster: SIGKILL of a rank, an exception (OSError), SIGSTOP of a
rank, loss of a host's power (it is on again {BACK_S:g} s after it was missed), an update of the code, and one that fails after
5 steps. Each is seen to have happened, or it is noted why there was nothing to strike: an idle standby, a host that is off
or out, no attempt that runs.

The plan has the same nodes, standbys, mix and saving, and is given the very faults of the job's schedule; where it draws
durations, it is the mean over its seeds. No number of it was chosen to fit these jobs: its times are medians and 95 %
quantiles of calibration jobs with other seeds, listed below. Both sides: `--diagnose never`, since checks would compute on
hosts that share their CPUs; ETTR is `report.effective`'s, phases are `planning/course.py`'s. Left out when faults are drawn:
power of the first host, which has the controller (plans do not simulate its loss), and what comes in the first 5 s, before
all hosts have come. A fault of which a launcher does not know yet as the time is over counts as training on both sides. Which
of two standbys takes a place may differ, and then a later fault of that host strikes the one and not the other.
"""


FOUND = """## What the comparison found

- `report.effective` took what was trained before a job began from the beginning again for training: where it started from was
  "not known". The launcher says so since, and it counts as lost. Up to 12 points of a job that had not saved yet.
- The plan let jobs go on from memory after a rollback. A job does not: memory holds what the bad code saved last, so it goes on
  from storage. With the plan as it was, real minus plan was -0.39 points (± 0.40) in the first 48 of these jobs.
- What the core asks took the plan 0.2 and 0.5 s, always; these are times of a plan now (`ask`, `ask_all`).

The jobs ran three at a time at priority -10, beside other work (load average 16 to 30 on two cores). A first series (seed 1)
without that priority was given up after 12 jobs, whose results had been looked at: they had no CPU to start with, and nine of
them were 5.5 points below plans whose times were measured on a quieter machine. These jobs have another seed (2), and none of
the first series' intervals of 160 steps. The rule about faults that are not known yet at the end was made when 45 of them had
run, and moved the mean by 0.3 points. A plan is as good as its times.
"""


def page(all_held: Sequence[Held], known: Measured, where: str, unpaired: tuple[int, float, float]) -> str:
    """Return the page. `unpaired`: so many other schedules, what the plan says of them in the mean, its standard error."""
    total = summed(all_held)
    lines = [BEGINNING + where, "", WHAT, *_result(total, unpaired), "", *_kinds(all_held), ""]
    lines += [*_phases(all_held), "", FOUND, *_actions(all_held), "", *_faults(all_held), "", *_measured(known), ""]
    lines += _each(all_held)
    return "\n".join(lines) + "\n"


def _result(total: Sum, unpaired: tuple[int, float, float]) -> list[str]:
    others, mean, error = unpaired
    return [
        "## ETTR",
        "",
        f"**{total.jobs} jobs: real {total.real:.2%}, plan {total.plan:.2%};"
        f" real minus plan {100 * total.off:+.2f} points"
        f" (± {100 * total.error:.2f}, standard error of the mean).** {total.within} of {total.jobs} single jobs are within"
        f" {100 * WITHIN:g} points; the largest difference is {100 * total.largest:+.1f}. Of {others} other schedules, drawn with"
        f" other seeds, the plan says {mean:.2%} (± {100 * error:.2f}).",
    ]


def _kinds(all_held: Sequence[Held]) -> list[str]:
    rows = ["| jobs | | real | plan | real minus plan | within 3 points |", "|---|---|---|---|---|---|"]
    for name, memory in (("saving to storage", False), ("each step in memory, too", True)):
        some = [each for each in all_held if each.came.job.memory is memory]
        if some:
            total = summed(some)
            rows.append(
                f"| {name} | {total.jobs} | {total.real:.2%} | {total.plan:.2%} |"
                f" {100 * total.off:+.2f} ± {100 * total.error:.2f} | {total.within} |"
            )
    return rows


def _phases(all_held: Sequence[Held]) -> list[str]:
    rows = [
        f"| {name} | {real_s:.2f} | {plan_s:.2f} | {real_s - plan_s:+.2f} | {100 * (real_s - plan_s) / HORIZON_S:+.2f} |"
        for name, real_s, plan_s in mean_phases(all_held)
    ]
    return [
        "## Where the time went",
        "",
        f"Seconds of a job of {HORIZON_S:g} s, in the mean. start: until its first step; the others are those after it.",
        "",
        "| phase | real | plan | difference | points |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _actions(all_held: Sequence[Held]) -> list[str]:
    attempts = sum(len(each.came.attempts) for each in all_held)
    planned = sum(each.plan_attempts for each in all_held)
    rows = [f"| {name} | {real:g} | {plan:.1f} |" for name, (real, plan) in actions(all_held).items()]
    return [
        "## What was done",
        "",
        "| in all jobs | real | plan |",
        "|---|---|---|",
        f"| attempts | {attempts} | {planned:.1f} |",
        *rows,
    ]


def _faults(all_held: Sequence[Held]) -> list[str]:
    rows = []
    for name, counts in strikes(all_held).items():
        idle = sum(counts.values()) - counts["fired"] - counts[NOT_RAISED]
        rows.append(f"| {name} | {sum(counts.values())} | {counts['fired']} | {idle} | {counts[NOT_RAISED]} |")
    return [
        "## Faults",
        "",
        "*Not raised*: its rank waited in a collective for one that was struck before, and was ended; left out on both sides.",
        "",
        "| kind | drawn | fired | nothing to strike | not raised |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _measured(known: Measured) -> list[str]:
    times, faults = known.times, known.mix.faults
    constant = lambda seconds: Spread(seconds)  # noqa: E731
    rows: list[tuple[str, Spread, str]] = [
        ("until the first step of a job", times.cold_launch, "start"),
        ("a question to one node", constant(times.ask), "ask"),
        ("which checkpoints nodes have", constant(times.ask_all), "ask_all"),
        ("end", times.end, "end"),
        ("launch", times.launch, "launch"),
        ("groups, beginning from nothing", times.connect, "load_nothing"),
        ("load from storage, beyond that", times.load_storage, "load_storage"),
        ("load from memory, beyond that", times.load_memory, "load_memory"),
        ("a step", constant(times.step), "step"),
        ("`robust update`, until it is staged", constant(known.update_s), "update"),
        ("a rank was killed: first sign", faults["killed"].detect, "detect killed"),
        ("an exception: first sign", faults["input_output"].detect, "detect input_output"),
        ("a rank was stopped: it is suspected", faults["stopped"].detect, "act stopped"),
        ("a rank was stopped: from there to the proof", times.localise, "localise"),
        ("power: the node is missed", faults["power"].detect, "detect power"),
        ("power: from there until it joins again", faults["power"].repair or Spread(0.0), "back"),
        ("bad code: from its first step", faults["bad_update"].detect, "detect bad_update"),
    ]
    return [
        "## What was measured beforehand",
        "",
        f"In {known.jobs} calibration jobs with other seeds. Steps between saves, nodes and {BACK_S:g} s of no power are inputs.",
        "",
        "| seconds | median | 95 % | samples |",
        "|---|---|---|---|",
        *(f"| {what} | {each.median:.3f} | {_p95(each)} | {known.counts.get(name, 0)} |" for what, each, name in rows),
    ]


def _p95(of: Spread) -> str:
    return f"{of.p95:.3f}" if of.p95 > of.median else ""


def _each(all_held: Sequence[Held]) -> list[str]:
    rows = []
    for each in all_held:
        job = each.came.job
        fired = ", ".join(f"{strike.name} {strike.at_s:.0f}" for strike in each.came.strikes if strike.came == "fired")
        most = max(each.real_s, key=lambda name: abs(each.real_s[name] - each.plan_s[name]))
        why = f"{most} {each.real_s[most] - each.plan_s[most]:+.1f} s" if abs(each.off) > WITHIN else ""
        rows.append(
            f"| {job.number} | {job.every}{' +' if job.memory else ''} | {fired} |"
            f" {len(each.came.attempts)} | {each.plan_attempts:.1f} |"
            f" {each.real:.1%} | {each.plan:.1%} | {100 * each.off:+.1f} | {why} |"
        )
    return [
        "## Each job",
        "",
        "Steps between saves (+: each step in memory, too), faults that struck and at which second; where the two are more than",
        "3 points apart, the phase that differs most.",
        "",
        "| job | saves | faults | attempts | plan | ETTR | plan | points | |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
