"""`robust plan`: what it is asked, what it says, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from jobs import wait_for

from robust_run.errors import UserError
from robust_run.planning import mix as mixes
from robust_run.planning.advice import daly_s, young_s
from robust_run.planning.advising import Planned, planned
from robust_run.planning.command import plan as command
from robust_run.planning.faults import faults_of
from robust_run.planning.many import PROGRAM, run_all
from robust_run.planning.mix import DEFAULT, parse, scaled
from robust_run.planning.results import out_quantile
from robust_run.planning.show import FEW_SEEDS, lines_of
from robust_run.planning.words import FaultKind, Mix, Plan, Spread
from robust_run.planning.worker import Task

SMALL = Plan(nodes=8, gpus_per_node=2, standby=2, days=3.0, mix=scaled(DEFAULT, 300.0), price=2.0)


def test_faults_come_as_often_as_the_mix_says_and_most_on_lemons() -> None:
    kind = FaultKind(shows="crash", per_1000_node_days=5.0)
    plan = Plan(nodes=2000, days=100.0, mix=Mix(faults={"it": kind}, lemons=0.01, lemon_factor=20.0))
    found = faults_of(plan, 0)
    expected = 2000 * 100.0 * 5.0 / 1000.0
    assert abs(len(found) - expected) < 5 * math.sqrt(expected)
    by_host: dict[int, int] = {}
    for each in found:
        by_host[each.host] = by_host.get(each.host, 0) + 1
    most = sorted(by_host.values(), reverse=True)[:10]
    assert sum(most) > 10 * 5  # a usual host has 0.4 on average
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


def test_more_standbys_or_other_mechanisms_meet_the_same_faults() -> None:
    more = msgspec.structs.replace(SMALL, standby=5)
    first = [(each.at_s, each.name) for each in faults_of(SMALL, 3) if each.host < 8]
    assert first == [(each.at_s, each.name) for each in faults_of(more, 3) if each.host < 8]


def test_a_duration_has_the_median_and_the_quantile_that_it_says() -> None:
    import random

    rng = random.Random(1)
    drawn = sorted(Spread(10.0, 40.0).draw(rng) for _ in range(4000))
    assert drawn[2000] == pytest.approx(10.0, rel=0.1)
    assert drawn[3800] == pytest.approx(40.0, rel=0.15)
    assert Spread(7.0).draw(rng) == 7.0


def test_processes_find_what_one_finds() -> None:
    tasks = [Task(SMALL, seed) for seed in range(3)]
    assert run_all(tasks, 2) == run_all(tasks, 1)


def test_a_process_whose_asker_is_gone_before_it_begins_does_not_begin() -> None:
    argv = [sys.executable, "-I", "-c", PROGRAM, str(os.getppid()), *sys.path]
    task = msgspec.json.encode(Task(Plan(nodes=2000, days=3650.0, mix=scaled(DEFAULT, 1000.0)), 0)) + b"\n"
    done = subprocess.run(argv, input=task, capture_output=True, timeout=100, check=True)
    assert done.stdout == b""


def test_a_process_is_deaf_to_ctrl_c_and_goes_at_once_with_who_asked_it() -> None:
    long = Plan(nodes=2000, days=3650.0, mix=scaled(DEFAULT, 1000.0))
    text = (
        "import os, sys, time\nfrom robust_run.planning.many import _worker\n"
        "worker = _worker()\nprint(worker.pid, flush=True)\n"
        "worker.stdin.write(sys.stdin.buffer.readline())\nworker.stdin.flush()\ntime.sleep(600)"
    )
    asker = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asker.stdin is not None and asker.stdout is not None
    with asker:
        pid = int(asker.stdout.readline())
        status = Path(f"/proc/{pid}/status")
        wait_for(lambda: _ignores(status, signal.SIGINT), "the process to be at work")
        os.kill(pid, signal.SIGINT)
        asker.stdin.write(msgspec.json.encode(Task(long, 0)) + b"\n")
        asker.stdin.flush()
        wait_for(lambda: int(Path(f"/proc/{pid}/stat").read_text().split()[13]) > 0, "it to reckon")
        asker.kill()
        wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text(), "it to be gone")


def _ignores(status: Path, number: int) -> bool:
    ignored = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


def test_a_file_changes_what_it_names() -> None:
    read = parse(
        "lemons = 0.5\n[faults.hang]\nper_1000_node_days = 3\n[faults.mine]\nshows = 'lost'\n"
        "[times]\nrepair = {median = 60}\n[saving]\nevery_s = 60\n"
    )
    assert read.mix.lemons == 0.5
    assert read.mix.faults["hang"] == msgspec.structs.replace(DEFAULT.faults["hang"], per_1000_node_days=3.0)
    assert read.mix.faults["mine"].shows == "lost"
    assert read.mix.faults["nan"] == DEFAULT.faults["nan"]
    assert (read.times.repair, read.saving.every_s) == (Spread(60.0), 60.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lemons = 2", "lemons"),
        ("colour = 1", "colour"),
        ("[faults.hangs]\nper_day = 1", "did you mean hang?"),
        ("[faults.hang]\nshows = 'fog'", "faults.hang"),
        ("[times]\nend = {median = -1}", "[times]"),
        ("faults = 3", "faults must be a table"),
        ("[faults.mine]\nshows = 'crash'\ntrouble = 'cudda'", "did you mean cuda?"),
        ("[faults.infiniband]\ntrouble = 'network.lnk_down'", "did you mean network.link_down?"),
        ("[faults.mine]\nshows = 'alert'", "no event of a sensor"),
        ("[", "is no TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(text, "my.toml")
    assert "my.toml" in str(refused.value)
    assert words in str(refused.value)


def test_a_rate_scales_all_kinds_alike() -> None:
    twice = scaled(DEFAULT, 2 * mixes.total(DEFAULT))
    assert mixes.total(twice) == pytest.approx(2 * mixes.total(DEFAULT))
    assert twice.faults["hang"].per_1000_node_days == pytest.approx(2 * DEFAULT.faults["hang"].per_1000_node_days)


def test_theory_of_intervals() -> None:
    assert young_s(2.0, 22500.0) == pytest.approx(300.0)
    assert daly_s(2.0, 22500.0) == pytest.approx(300.0, abs=3.0)
    assert daly_s(100.0, 20.0) == 20.0


def test_a_quantile_of_nodes_that_are_out() -> None:
    assert out_quantile([(98.0, 1.0, 1.0), (100.0,)], 0.99) == 0
    assert out_quantile([(90.0, 9.0, 1.0)], 0.99) == 1
    assert out_quantile([(90.0, 0.0, 10.0)], 0.99) == 2
    assert out_quantile([], 0.99) == 0


def test_a_plan_with_advice_says_all_of_it(tmp_path: Path) -> None:
    mix = tmp_path / "mix.toml"
    mix.write_text("[times]\nperson = {median = 60}\n")
    asked = ["--nodes", "6", "--gpus-per-node", "2", "--days", "1", "--rate", "500", "--seeds", "2", "--price", "2"]
    shown = CliRunner().invoke(
        command,
        [*asked, "--mix", str(mix), "--processes", "1", "--html", str(tmp_path / "plan.html")],
        standalone_mode=False,
    )
    assert shown.exception is None
    for words in ("6 nodes, 12 GPUs, 1 days", "ETTR", "goodput", "lost by phase", "lost by cause", "incidents by"):
        assert words in shown.output
    page = (tmp_path / "plan.html").read_text()
    for words in (
        "<h1>6 nodes, 12 GPUs, 1 days</h1>",
        "What each mechanism is worth",
        "by Young",
        "checkpoints in memory",
    ):
        assert words in page
    assert "nan %" not in page
    for words in ("<- costs least", "Young", "checks and the ladder", "without copies in memory"):
        assert words in shown.output


def test_as_json_it_is_a_document_that_says_what_was_planned() -> None:
    asked = [
        "--nodes",
        "6",
        "--days",
        "1",
        "--rate",
        "500",
        "--seeds",
        "2",
        "--no-advice",
        "--json",
        "--processes",
        "1",
    ]
    said = json.loads(CliRunner().invoke(command, asked, standalone_mode=False).output)
    assert said["schema"] == 1
    assert msgspec.convert(said, Planned).summary.seeds == 2
    assert said["plan"]["nodes"] == 6
    assert said["advice"] is None


def test_money_is_what_gpu_hours_cost() -> None:
    summary = planned(SMALL, range(2), 1, advises=False).summary
    assert summary.lost.money == pytest.approx(2.0 * summary.lost.gpu_hours)
    assert summary.lost.gpu_hours == pytest.approx((1.0 - summary.goodput.mean) * 16 * 72.0)
    assert sum(each.share for each in summary.by_phase.values()) == pytest.approx(summary.lost.share)
    assert sum(each.share for each in summary.by_cause.values()) == pytest.approx(summary.lost.share)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--standby", "-1"], "--standby"),
        (["--ckpt-every", "soon"], "--ckpt-every"),
        (["--mix", "/no/such"], "--mix"),
        (["--mix", "/dev/zero"], "larger than 1 MiB"),
        (["--rate", "nan"], "--rate is no number"),
        (["--days", "nan"], "--days is no number"),
        (["--price", "nan"], "--price is no number"),
    ],
)
def test_a_mistake_is_said(asked: list[str], words: str) -> None:
    refused = CliRunner().invoke(command, ["--nodes", "4", *asked], standalone_mode=False)
    assert isinstance(refused.exception, UserError)
    assert words in str(refused.exception)


def test_of_few_seeds_the_lowest_and_the_highest_are_said() -> None:
    few, many, one = (
        "\n".join(lines_of(planned(SMALL, range(seeds), 1, advises=False).summary)) for seeds in (2, FEW_SEEDS, 1)
    )
    assert "lowest" in few and "in 9 of 10" not in few
    assert "in 9 of 10 seeds" in many and "lowest" not in many
    assert "lowest" not in one and "in 9 of 10" not in one


def test_a_job_without_failures_says_so_and_no_stop() -> None:
    quiet = msgspec.structs.replace(SMALL, mix=Mix(faults={}))
    shown = "\n".join(lines_of(planned(quiet, range(1), 1, advises=False).summary))
    assert "1 attempts, no failure; longest stop 0.0 s" in shown


def test_an_update_of_any_name_is_no_failure() -> None:
    often = Mix(faults={"release": FaultKind(shows="update", per_day=10.0)})
    assert planned(msgspec.structs.replace(SMALL, mix=often), range(1), 1, advises=False).summary.failures == 0.0
