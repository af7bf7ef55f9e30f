"""The batch script has what a job needs to outlive its nodes, in a form that a person can read and change."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.slurm.rules.sbatch_options import read_options
from robust_run.slurm.rules.script import JobWanted, Script, make_script

COMMAND = ("robust-run", "--nproc-per-node", "8", "train.py")
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)


def script(
    *options: str,
    command: tuple[str, ...] = COMMAND,
    nodes: int | None = None,
    step: tuple[str, ...] = (),
    log_dir: str = "/shared/50% off/runs",
) -> Script:
    return make_script(
        JobWanted(
            options=read_options(options),
            step_options=step,
            command=command,
            nodes=nodes,
            name="train",
            log_dir=log_dir,
            version="1.2.3",
        )
    )


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def step_words(text: str) -> list[str]:
    step = text[text.index("\nsrun ") : text.rindex(" || code=$?\n")]
    return shlex.split(step.replace("\\\n", " "))


def test_a_script_as_a_whole() -> None:
    assert script("-N4", "-c", "32", "--gpus-per-node=8", "-t", "12:00:00").text == (
        "#!/bin/bash\n"
        "# Written by `robust slurm submit` (robust-run 1.2.3). It can be changed and submitted with sbatch.\n"
        "#SBATCH --nodes=4\n"
        "#SBATCH --cpus-per-task=32\n"
        "#SBATCH --gpus-per-node=8\n"
        "#SBATCH --time=12:00:00\n"
        "#SBATCH --job-name=train\n"
        '#SBATCH --output="/shared/50%% off/runs/slurm-%j.out"\n'
        "#SBATCH --requeue\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --no-kill\n"
        "#SBATCH --open-mode=append\n"
        "\n"
        "# robust-run gets the job's signals itself; this shell only outlives them.\n"
        "trap : HUP INT TERM USR1 USR2\n"
        "\n"
        "# One task per node, which starts the workers there. It goes on when a node, or its task, is lost.\n"
        "unset ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@}\n"
        "export ROBUST_SLURM_EXIT_FILE='/shared/50% off/runs'/slurm-$SLURM_JOB_ID.exit\n"
        ': > "$ROBUST_SLURM_EXIT_FILE"\n'
        "code=0\n"
        'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill \\\n'
        "    --kill-on-bad-exit=0 --wait=0 --mpi=none --cpu-bind=none --export=ALL --cpus-per-task=32 \\\n"
        "    --gpus-per-node=8 --gpu-bind=none \\\n"
        "    robust-run --nproc-per-node 8 train.py || code=$?\n"
        "\n"
        "# srun fails if a node was lost, also if another took its place: robust-run's own word, if there is one, comes first.\n"
        'said=$(cat "$ROBUST_SLURM_EXIT_FILE" 2>/dev/null || true); rm -f "$ROBUST_SLURM_EXIT_FILE"\n'
        "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # the number alone may mean the whole array\n"
        "job=${job:-$SLURM_JOB_ID}\n"
        "if [ $code != 0 ] && [ -z \"$said\" ] && scontrol show job $job | grep -q ' PreemptTime=[0-9]'; then\n"
        "    scontrol requeue $job  # it was preempted before robust-run was there\n"
        "fi\n"
        'exit "${said:-$code}"\n'
    )


def test_what_was_typed_wins() -> None:
    said = directives(script("-J", "mine", "-o", "out.txt", "--no-requeue", "--ntasks-per-node=1").text)
    assert "--job-name=mine" in said
    assert "--output=out.txt" in said
    assert not any(line == "--requeue" or "slurm-%j" in line for line in said)
    assert said.count("--ntasks-per-node=1") == 1


def test_an_array_has_a_log_per_task() -> None:
    assert any("slurm-%A_%a.out" in line for line in directives(script("--array=0-3").text))


def test_nodes_follow_from_robust_runs_own_options() -> None:
    assert "--nodes=5" in directives(script(nodes=5).text)
    assert "--nodes=6" in directives(script("-N6", nodes=5).text)
    with pytest.raises(UserError, match=r"--nodes=4: robust-run's --nnodes and --standby are 5 nodes; write -N 5"):
        script("-N4", nodes=5)


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_words_reach_robust_run_as_they_were_typed(words: list[str]) -> None:
    text = script("-N2", command=("robust-run", *words)).text
    assert step_words(text)[-len(words) :] == words


def test_nothing_that_was_typed_is_run_by_the_shell(tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/a) `touch {tmp_path}/b`; touch {tmp_path}/c\n touch {tmp_path}/d"
    options = ("-N2", f"--gres=gpu:2;touch {tmp_path}/e", "--comment=$(touch x)")
    text = script(*options, command=("robust-run", evil), log_dir=str(tmp_path)).text
    done = run_script(tmp_path, text, f'printf "%s" "$*" > {tmp_path}/ran')
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran", "srun"]
    assert evil in (tmp_path / "ran").read_text()


def run_script(folder: Path, text: str, srun: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script with something else for srun."""
    (folder / "srun").write_text(f"#!/bin/sh\n{srun}\n")
    (folder / "srun").chmod(0o755)
    env = {"PATH": f"{folder}:/bin:/usr/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPU_BIND": "x"}
    env |= more
    argv = ["bash", "-eu"]
    return subprocess.run(argv, input=text, env=env, capture_output=True, text=True, cwd=folder, timeout=60)


@pytest.mark.parametrize(
    ("srun", "code"),
    [
        ("exit 137", 137),
        ("echo 0 > $ROBUST_SLURM_EXIT_FILE; exit 137", 0),
        ("echo 3 > $ROBUST_SLURM_EXIT_FILE; exit 137", 3),
        ("rm $ROBUST_SLURM_EXIT_FILE; exit 9", 9),
        ("exit 0", 0),
    ],
)
def test_the_script_ends_as_the_job_did_and_not_as_a_task_that_was_lost(tmp_path: Path, srun: str, code: int) -> None:
    (tmp_path / "slurm-17.exit").write_text("5\n")  # of an earlier start
    assert run_script(tmp_path, script("-N2", log_dir=str(tmp_path)).text, srun).returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["srun"]


@pytest.mark.parametrize(
    ("srun", "preempted", "requeued"),
    [
        ("exit 143", "2026-11-22T05:33:45", True),
        ("exit 143", "None", False),
        ("echo 143 > $ROBUST_SLURM_EXIT_FILE; exit 143", "2026-11-22T05:33:45", False),  # robust-run has seen to it
        ("exit 0", "2026-11-22T05:33:45", False),
    ],
)
def test_a_job_that_makes_room_before_python_runs_is_requeued(
    tmp_path: Path, srun: str, preempted: str, requeued: bool
) -> None:
    says = f"JobId=17 PreemptEligibleTime=2026-11-22T05:33:40 PreemptTime={preempted}"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{says}"\n')
    (tmp_path / "scontrol").chmod(0o755)
    run_script(tmp_path, script("-N2", log_dir=str(tmp_path)).text, srun)
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert ("requeue 17" in asked) is requeued
    assert "scontrol requeue" not in script("-N2", "--no-requeue").text


def test_a_task_of_an_array_requeues_itself_though_its_number_means_all_of_them(tmp_path: Path) -> None:
    says = "JobId=17 PreemptTime=2026-11-22T05:33:45"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{says}"\n')
    (tmp_path / "scontrol").chmod(0o755)
    text = script("--array=0-2", log_dir=str(tmp_path)).text
    run_script(tmp_path, text, "exit 143", SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="2")
    assert (tmp_path / "asked").read_text().splitlines() == ["show job 17_2", "requeue 17_2"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ('a "b" #c', '--comment="a \\"b\\" #c"'),
        ("back \\ slash", '--comment="back \\\\ slash"'),
        ("it's", '--comment="it\'s"'),
        ("plain", "--comment=plain"),
    ],
)
def test_sbatch_reads_back_what_was_typed(value: str, line: str) -> None:
    assert line in directives(script("--comment", value).text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ntasks-per-node=8"], "--ntasks-per-node=8: one robust-run per node starts all workers of the node; leave it out "
                                  "and write robust-run --nproc-per-node 8"),
        (["-N2", "-n16"], "--ntasks=16: one robust-run per node starts all workers of the node; write -N NODES instead"),
        (["--ntasks-per-gpu=1", "--ntasks-per-socket=2"], "--ntasks-per-socket=2: one robust-run per node"),
        (["--wrap=hostname"], "--wrap: the script is written from what follows --"),
        (["--no-kill=off"], "--no-kill=off: the loss of a node would end the whole job"),
        (["--open-mode=truncate"], "--open-mode=truncate: after a requeue, what the job said before would be lost"),
        (["--mpi=pmix"], "--mpi is an option of srun: write --srun=--mpi=pmix"),
        (["--container-image=a b"], "--container-image is an option of srun: write --srun='--container-image=a b'"),
    ],
)  # fmt: skip
def test_options_that_break_such_a_job_are_refused_with_what_to_write(options: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        script(*options)
    assert str(caught.value).startswith(message)


def test_as_many_tasks_as_nodes_are_one_per_node() -> None:
    assert "--ntasks-per-node=1" in directives(script("-N4", "-n4").text)


@pytest.mark.parametrize(
    "word",
    [
        *("--nodes=2", "-N2", "-K1", "--wait=30", "--mpi=pmix", "--multi-prog", "--export=NONE"),
        *("--kill=1", "--wai=3", "--expo=NONE", "--ntasks-per-n=2", "--nodes 3", "-lN3", "-lk", "-uK"),
    ],
)
def test_a_step_is_as_the_script_says_it(word: str) -> None:
    with pytest.raises(UserError, match="leave it out"):
        script(step=(word,))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--nodel=a", "before --"),
        ("-wa", "before --"),
        ("-lxa", "before --"),
        ("--excl=a", "before --"),
        ("--ntasks-per-g=2", "starts all workers"),
        ("--test", "starts nothing"),
    ],
)
def test_a_step_is_not_on_other_nodes_than_its_job(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        script(step=(word,))


@pytest.mark.parametrize("word", ["--time=1:00", "-t60", "-lt60", "--ti=5", "--begin=now+60", "--deadline=noon"])
def test_a_step_begins_and_ends_with_its_job(word: str) -> None:
    with pytest.raises(UserError, match="lives as long as its job"):
        script("-N2", step=[word])


@pytest.mark.parametrize(
    "word", ["--exclusive", "--overlap", "--label", "-l", "-pN3", "--mem=0", "--container-image=a", "-Jx"]
)
def test_other_options_of_srun_are_taken(word: str) -> None:
    assert word in step_words(script(step=(word,)).text)


@pytest.mark.parametrize("word", ["hostname", "-", "--", "--a\nb"])
def test_more_for_srun_is_one_option_a_word(word: str) -> None:
    with pytest.raises(UserError, match="--srun="):
        script(step=(word,))


def test_more_for_srun_comes_before_the_command() -> None:
    words = step_words(script(step=("--container-image=a b", "--label")).text)
    assert words[words.index("robust-run") - 2 :][:2] == ["--container-image=a b", "--label"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-c4", "--no-requeue"], "--no-requeue: when its time is over"),
        (["-c4", "--signal=B:USR1@120"], "reaches only this script"),
        (["-c4", "--signal=USR1@120"], "reaches every process of the training"),
        ([], "no --cpus-per-task and no --exclusive"),
    ],
)
def test_the_author_is_told_what_follows(options: list[str], words: str) -> None:
    (note,) = script(*options).notes
    assert words in note


def test_a_usual_job_needs_no_words() -> None:
    assert script("-N4", "--exclusive", "--gpus-per-node=8").notes == ()
