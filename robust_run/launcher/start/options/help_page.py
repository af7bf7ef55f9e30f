"""What `robust-run -h` and `robust-run --help` say: what is typed most, and every option by subject. Imported when asked for."""

from __future__ import annotations

import shutil

import click

from robust_run.launcher.start.options.options import GROUPS, HELP_OPTIONS, OPTIONS, OptionDescription

_INTRODUCTION = "Run SCRIPT in several processes, as torchrun does, and restart them when one fails."
_USAGE = "[options] SCRIPT [options of SCRIPT]"
EXAMPLES = (
    ("robust-run --nproc-per-node 8 train.py --lr 3e-4", "8 workers on this node"),
    (
        "robust-run --nnodes 4 --standby 1 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node-0:29400 train.py",
        "the same line on each of 5 nodes",
    ),
    ("srun -N4 --ntasks-per-node=1 robust-run train.py", "on Slurm"),
    ("robust-run --nproc-per-node 8 --ckpt-dir /ckpt train.py", "each attempt starts from the newest checkpoint"),
    ("robust-run --resume robust-runs/20261121-102137-6959", "go on with a job whose launcher is gone"),
)
"""Command lines, and what each is for."""
COMMON = (
    "nproc-per-node",
    "nnodes",
    "rdzv-backend",
    "rdzv-endpoint",
    "standby",
    "module",
    "max-restarts",
    "on-hang",
    "ckpt-dir",
    "setup",
    "image",
    "notify",
    "log-dir",
    "resume",
)
"""Options that are typed most, torchrun's among them."""
_SHORT_END = (
    "robust-run --help shows every option; robust --help what looks after jobs; docs/start.md is where to begin."
)
_CLOSING = (
    "Names may be written with - or _ and cut short. What is not given is read from the environment: torchrun's options"
    " from PET_<NAME> (PET_NNODES), robust-run's from ROBUST_<NAME> (ROBUST_RUN_ID). Words after SCRIPT are its own."
)
_WIDEST = 110


def page(*, is_long: bool) -> str:
    """Return what is printed: with every option, or with those that are typed most."""
    formatter = click.HelpFormatter(width=max(50, min(shutil.get_terminal_size().columns, _WIDEST) - 2))
    formatter.write_usage("robust-run", _USAGE)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_INTRODUCTION)
    with formatter.section("Examples"):
        for line, purpose in EXAMPLES:
            formatter.write(f"{'':{formatter.current_indent}}# {purpose}\n{'':{formatter.current_indent}}{line}\n")
    by_name = {option.name: option for option in OPTIONS}
    if is_long:
        for group in GROUPS:
            _section(formatter, group, [option for option in (*OPTIONS, *HELP_OPTIONS) if option.group == group])
    else:
        _section(formatter, "Used most", [by_name[name] for name in COMMON])
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_CLOSING if is_long else _SHORT_END)
    return formatter.getvalue().rstrip("\n")


def _section(formatter: click.HelpFormatter, title: str, options: list[OptionDescription]) -> None:
    with formatter.section(title):
        formatter.write_dl([row(option) for option in options])


def row(option: OptionDescription) -> tuple[str, str]:
    """Return an option's names with its value, and what it does with its default."""
    value = f"[={option.metavar}]" if option.kind == "maybe" else f" {option.metavar}" if option.metavar else ""
    name = f"--{option.name}{value}"
    has_default = option not in HELP_OPTIONS and option.default not in (None, False, "", ())
    names = f"-{option.short}, {name}" if option.short else name
    return names, f"{option.help} [default: {option.default}]" if has_default else option.help
