"""What /proc tells of processes: real ones, and texts that no kernel should write."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_alone import rank, until

from robust_run.tracer.files.ring import stacks_signal
from robust_run.tracer.sight import processes

FORKS = """
import time
pids = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


def test_this_process_is_seen():
    seen = processes.look(os.getpid())
    assert seen is not None
    assert (seen.pid, seen.parent) == (os.getpid(), os.getppid())
    assert seen.state in "RS"
    assert processes.age_s(seen) >= 0
    assert processes.is_python(os.getpid())


def test_cpu_and_io_are_counted(tmp_path: Path):
    before = processes.look(os.getpid())
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    until(lambda: processes.look(os.getpid()).cpu_ticks > before.cpu_ticks, "a tick of CPU")
    after = processes.look(os.getpid())
    assert after.call_bytes - before.call_bytes >= 1 << 20


def test_a_process_that_is_gone_is_none_and_its_ruins_are_seen():
    child = subprocess.Popen(["true"])
    until(lambda: processes.look(child.pid).is_gone, "its end")
    assert processes.look(child.pid).state == "Z"
    child.wait(60)
    assert processes.look(child.pid) is None
    assert processes.children(child.pid) == []
    assert not processes.catches(child.pid, 10)
    assert processes.command_of(child.pid) == ""


def test_the_tree_of_a_rank_is_found_and_children_answer_as_it_does(tmp_path: Path):
    with rank(tmp_path, FORKS) as target:
        tree = processes.tree(target.pid)
        assert tree[0] == target.pid
        assert len(tree) == 3
        assert {processes.look(pid).parent for pid in tree[1:]} == {target.pid}
        assert all(processes.catches(pid, stacks_signal()) for pid in tree)
        assert all(processes.has_open(pid, f"{target.steps_file}.stacks") for pid in tree)
        assert processes.command_of(target.pid).endswith("rank_0.py")
        assert processes.waits_in(target.pid) != "0"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN])
def test_the_signal_that_stopped_a_process_is_known(number: int):
    # In a process group of its own, beside ours in one session: what no shell controls ignores the signals of a terminal.
    child = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
    try:
        os.kill(child.pid, number)
        until(lambda: processes.look(child.pid).state == "T", "its stop")
        assert processes.look(child.pid).stopped_by == number
    finally:
        child.kill()
        child.wait(60)


def test_a_kernel_that_does_not_say_what_stopped_a_process_is_believed(tmp_path: Path):
    fields = ["T", "1", *["0"] * 17, "77", *["0"] * 31]
    a_process(tmp_path, 7, stat=f"7 (python) {' '.join(fields)}")
    assert processes.look(7, str(tmp_path)).stopped_by == 0
    fields[processes.EXIT_CODE_FIELD] = "19"
    a_process(tmp_path, 8, stat=f"8 (python) {' '.join(fields)}")
    assert processes.look(8, str(tmp_path)).stopped_by == 19


def test_how_long_threads_wait_for_a_cpu_is_counted_for_each(tmp_path: Path):
    a_process(tmp_path, 7)
    for thread, text in (("7", "5 2000000000 3\n"), ("8", "garbage"), ("x", "1 1 1")):
        (tmp_path / "7" / "task" / thread).mkdir(exist_ok=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(text)
    assert processes.delays_s(7, str(tmp_path)) == {7: 2.0}
    assert processes.delays_s(9, str(tmp_path)) == {}
    assert os.getpid() in processes.delays_s(os.getpid()) or not os.path.exists("/proc/self/schedstat")


def test_a_program_without_a_handler_is_told_apart(tmp_path: Path):
    program = 'import time\nprint("ready", flush=True)\ntime.sleep(600)\n'
    with rank(tmp_path, program, armed=False) as target:
        assert not processes.catches(target.pid, stacks_signal())
        assert not processes.has_open(target.pid, f"{target.steps_file}.stacks")
        os.kill(target.pid, signal.SIGSTOP)
        until(lambda: processes.look(target.pid).state == "T", "its stop")


def a_process(root: Path, pid: int, **files: str) -> None:
    (root / str(pid) / "task" / str(pid)).mkdir(parents=True)
    for name, text in files.items():
        path = root / str(pid) / name
        (root / str(pid) / "task" / str(pid) / "children" if name == "children" else path).write_text(text)


def test_names_may_hold_brackets_and_blanks(tmp_path: Path):
    numbers = " ".join(str(number) for number in range(4, 53))
    a_process(tmp_path, 7, stat=f"7 (a) R) b) S 3 {numbers}", io="rchar: 5\nwchar: 6\nread_bytes: 1\nwrite_bytes: x\n")
    seen = processes.look(7, str(tmp_path))
    assert (seen.state, seen.parent, seen.cpu_ticks, seen.start_ticks) == ("S", 3, 13 + 14, 21)
    assert (seen.call_bytes, seen.disk_bytes) == (11, 1)


def test_trees_are_bounded_in_width_and_depth_and_may_be_circles(tmp_path: Path):
    a_process(tmp_path, 1, children=" ".join(str(pid) for pid in range(2, 999)))
    assert len(processes.tree(1, str(tmp_path))) == processes.PROCESSES
    for pid in range(2000, 2020):
        a_process(tmp_path, pid, children=f"{pid + 1} {pid - 1}")
    assert processes.tree(2000, str(tmp_path))[-1] == 2000 + processes.DEPTH


@pytest.mark.parametrize(
    ("cmdline", "command"),
    [
        ("/usr/bin/python3\0-u\0/app/train.py\0--lr\01", "python3 train.py"),
        ("/usr/bin/python3\0-c\0from multiprocessing.spawn import spawn_main; ...", "python3"),
        ("cc1plus\0-quiet\0", "cc1plus"),
        ("", "kworker"),
    ],
)
def test_commands_are_short(tmp_path: Path, cmdline: str, command: str):
    a_process(tmp_path, 7, cmdline=cmdline, comm="kworker\n")
    assert processes.command_of(7, str(tmp_path)) == command


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_garbage_never_raises(tmp_path_factory, text: str):
    root = tmp_path_factory.mktemp("proc")
    a_process(root, 7, **dict.fromkeys(("stat", "io", "status", "cmdline", "comm", "wchan", "children"), text))
    seen = processes.look(7, str(root))
    assert seen is None or seen.cpu_ticks is not None
    assert len(processes.tree(7, str(root))) <= processes.PROCESSES
    assert len(processes.command_of(7, str(root))) <= processes.COMMAND_CHARACTERS
    assert processes.catches(7, 61, str(root)) in (True, False)
    assert processes.waits_in(7, str(root)).isprintable()


def test_a_program_that_was_replaced_has_nothing_mapped_any_more(tmp_path: Path) -> None:
    file = tmp_path / "some.ring"
    file.write_bytes(bytes(4096))
    program = (
        "import mmap, os, sys; kept = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096); print(flush=True); input()\n"
        "os.execlp('sh', 'sh', '-c', 'echo; read x')"
    )
    argv = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert processes.maps(process.pid, str(file)) is True
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert processes.maps(process.pid, str(file)) is False
        process.stdin.close()
    assert processes.maps(process.pid, str(file)) is None, "it is gone"
    assert processes.maps(os.getpid(), str(tmp_path / "none.ring")) is None
