"""`robust slurm submit` and `doctor`, with Slurm's commands played by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from robust_run.errors import PlatformError, UserError
from robust_run.robust_cli import robust
from robust_run.slurm.doctor import examine, examine_nodes
from robust_run.slurm.rules.script import make_script
from robust_run.slurm.submit import plan, submit
from robust_run.slurm.tools import CommandResult


class Site:
    """Commands that a site has, and what they say."""

    def __init__(self, **answers: CommandResult) -> None:
        self.answers = answers
        self.calls: list[tuple[list[str], dict[str, str]]] = []

    def find(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.answers or name == "robust-run" else None

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> CommandResult:
        self.calls.append((list(argv), dict(env)))
        return self.answers[argv[0]]


def test_a_job_is_submitted_and_its_script_kept_beside_its_log(tmp_path: Path) -> None:
    site = Site(sbatch=CommandResult(0, "17;cluster\n"))
    wanted = plan(["-N4"], [], ["robust-run", "train.py"], {}, str(tmp_path))
    env = {"SLURM_CPU_BIND": "x", "SLURM_CONF": "y", "SBATCH_OPEN_MODE": "truncate", "SBATCH_ACCOUNT": "a"}
    submitted = submit(wanted, make_script(wanted), env, site)
    runs = tmp_path / "robust-runs"
    assert (submitted.job, submitted.script, submitted.log) == ("17", f"{runs}/slurm-17.sh", f"{runs}/slurm-17.out")
    assert Path(submitted.script).read_text() == make_script(wanted).text
    assert [path.name for path in runs.iterdir()] == ["slurm-17.sh"]
    assert site.calls[0][0][:2] == ["sbatch", "--parsable"]
    assert site.calls[0][1] == {"SLURM_CONF": "y", "SBATCH_ACCOUNT": "a"}


def test_a_folder_in_the_way_of_the_script_loses_no_job(tmp_path: Path) -> None:
    (tmp_path / "robust-runs/slurm-17.sh").mkdir(parents=True)
    wanted = plan(["-N4"], [], ["robust-run", "train.py"], {}, str(tmp_path))
    submitted = submit(wanted, make_script(wanted), {}, Site(sbatch=CommandResult(0, "17\n")))
    assert submitted.job == "17"
    assert Path(submitted.script).read_text() == make_script(wanted).text


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "robust-runs").touch()
    wanted = plan(["-N4"], [], ["robust-run", "train.py"], {}, str(tmp_path))
    with pytest.raises(PlatformError, match="choose another --log-dir"):
        submit(wanted, make_script(wanted), {}, Site(sbatch=CommandResult(0, "17\n")))


def test_what_is_typed_beats_variables_of_sbatch(tmp_path: Path) -> None:
    site = Site(sbatch=CommandResult(0, "17\n"))
    wanted = plan(["-t", "33", "-J", "typed"], [], ["robust-run", "train.py"], {}, str(tmp_path))
    env = {"SBATCH_TIMELIMIT": "7", "SBATCH_JOB_NAME": "x", "SBATCH_PARTITION": "p", "SBATCH_WAIT": "1"}
    submit(wanted, make_script(wanted), env, site)
    assert site.calls[0][1] == {"SBATCH_PARTITION": "p"}
    with pytest.raises(UserError, match="--wait"):
        plan(["--wait"], [], ["robust-run", "train.py"], {}, str(tmp_path))


def test_a_job_that_slurm_refuses_leaves_nothing(tmp_path: Path) -> None:
    site = Site(sbatch=CommandResult(1, "", "sbatch: error: invalid partition\n"))
    wanted = plan([], [], ["robust-run", "train.py"], {}, str(tmp_path))
    with pytest.raises(PlatformError, match="sbatch did not take the job: sbatch: error: invalid partition"):
        submit(wanted, make_script(wanted), {}, site)
    assert list((tmp_path / "robust-runs").iterdir()) == []


def test_without_sbatch_nothing_is_submitted(tmp_path: Path) -> None:
    wanted = plan([], [], ["robust-run", "train.py"], {}, str(tmp_path))
    with pytest.raises(PlatformError, match="sbatch is not in PATH"):
        submit(wanted, make_script(wanted), {}, Site())


@pytest.mark.parametrize(
    ("command", "nodes", "log_dir", "name"),
    [
        (["robust-run", "train.py"], None, "/w/robust-runs", "train"),
        (["robust-run", "--nnodes", "4", "--standby", "1", "train.py"], 5, "/w/robust-runs", "train"),
        (["robust-run", "--nnodes", "2:4", "--standby", "auto", "my train.py"], 4, "/w/robust-runs", "my-train"),
        (["/opt/robust-run", "--log-dir", "/data", "-m", "pkg.train"], None, "/data", "pkg"),
        (["python3", "-m", "robust_run", "--log-dir", "x", "train"], None, "/w/x", "train"),
    ],
)
def test_what_robust_runs_own_words_say(command: list[str], nodes: int | None, log_dir: str, name: str) -> None:
    wanted = plan([], [], command, {}, "/w")
    assert (wanted.nodes, wanted.log_dir, wanted.name) == (nodes, log_dir, name)


def test_standbys_that_nobody_has_counted_are_asked_for_by_what_the_folder_has_shown() -> None:
    asked: list[tuple[int, str]] = []

    def standbys(nodes: int, log_dir: str) -> tuple[int, str]:
        asked.append((nodes, log_dir))
        return 3, "3 standbys: because"

    words = ["robust-run", "--nnodes", "8", "--standby", "auto", "t.py"]
    wanted = plan([], [], words, {}, "/w", standbys)
    assert (wanted.nodes, wanted.standby_why, asked) == (11, "3 standbys: because", [(8, "/w/robust-runs")])
    counted = plan(["-N", "8"], [], words, {}, "/w", standbys)  # who types -N has counted
    assert (counted.nodes, counted.standby_why, len(asked)) == (8, "", 1)
    assert plan([], [], [*words[:4], "2", "t.py"], {}, "/w", standbys).nodes == 10
    assert plan([], [], ["robust-run", "--standby", "auto", "t.py"], {}, "/w", standbys).nodes is None


def test_a_job_may_work_elsewhere() -> None:
    assert plan(["-D", "/scratch/me"], [], ["robust-run", "t.py"], {}, "/w").log_dir == "/scratch/me/robust-runs"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "nothing to run: robust slurm submit [sbatch options] -- robust-run"),
        (["torchrun", "train.py"], "'torchrun' is not robust-run: after -- comes robust-run"),
        (["python", "train.py"], "'python' is not robust-run"),
        (["robust-run", "--help"], "robust-run --help and --version start no job"),
        (["robust-run", "--no-such", "t.py"], ""),
    ],
)
def test_a_command_that_is_no_job(command: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        plan([], [], command, {}, "/w")
    assert str(caught.value).startswith(message)


def test_the_command_line() -> None:
    words = [
        "slurm",
        "submit",
        "--dry-run",
        "-N2",
        "-c",
        "4",
        "--srun=--label",
        "--",
        "robust-run",
        "--dry",
        "t.py",
        "--",
        "x",
    ]
    ran = CliRunner().invoke(robust, [*words[:9], "t.py", "--", "x"])
    assert ran.exit_code == 0
    assert "#SBATCH --nodes=2\n#SBATCH --cpus-per-task=4\n" in ran.stdout
    assert "--label \\\n    robust-run t.py -- x || code=$?\n" in ran.stdout


# --- the doctor -----------------------------------------------------------------------------------------------------


def test_a_site_without_scontrol_is_told_so() -> None:
    findings = examine(
        Site(sbatch=CommandResult(0, "slurm 23.02.1\n"), srun=CommandResult(0), squeue=CommandResult(0)), {}
    )
    assert [finding.kind for finding in findings] == ["ok", "warning"]
    assert "scontrol: not in PATH (settings cannot be read" in str(findings[1])


def test_a_machine_without_slurm_is_told_so() -> None:
    assert [finding.kind for finding in examine(Site(), {})] == ["bad", "bad", "warning", "warning"]


def test_a_slurm_that_is_down_is_told_so() -> None:
    down = CommandResult(1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)")
    findings = examine(
        Site(sbatch=CommandResult(0, "slurm 23.02.1"), srun=CommandResult(0), squeue=CommandResult(0), scontrol=down),
        {},
    )
    assert str(findings[-1]).startswith("bad       slurmctld: does not answer: slurm_load_ctl_conf error")


def test_a_step_that_does_not_run_is_told_so(tmp_path: Path) -> None:
    (finding,) = examine_nodes(
        Site(srun=CommandResult(1, "noise", "srun: error: no nodes")), {}, 4, ["-pgpu"], str(tmp_path)
    )
    assert str(finding) == "bad       a step of 4 nodes: did not run: srun: error: no nodes"
