"""Which per-user warm process fits which job, and what is said where none does. No process is started."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from robust_run.errors import UserError
from robust_run.launcher.start.warm import key, origins, registry, surroundings
from robust_run.launcher.start.warm.commands import parse_duration_s
from robust_run.launcher.start.warm.handover import started_anew
from robust_run.launcher.start.warm.key import Announcement, Fingerprint
from robust_run.tracer.files.arming import arm_environment

MODULES = ("torch", "torch.distributed")


def a_fingerprint(**more: object) -> Fingerprint:
    facts = {
        "executable": "/venv/bin/python",
        "real_executable": "/usr/bin/python3.11",
        "python": "3.11.7",
        "variables": {"HOME": "/home/me", "OMP_NUM_THREADS": "1"},
        "preload": MODULES,
    }
    return Fingerprint(**{**facts, **more})  # type: ignore[arg-type]


def an_announcement(pid: int = 1, **more: object) -> Announcement:
    return Announcement(
        protocol=key.PROTOCOL,
        version="1",
        pid=pid,
        fingerprint=a_fingerprint(**more),
        wanted=MODULES,
        started_unix_s=0.0,
        idle_limit_s=None,
        folders={},
        files={},
    )


# --- the environment ---

UNRELATED = (
    "SHLVL SSH_CONNECTION SLURM_JOB_ID PWD TERM MY_OWN RANK MASTER_PORT CUDA_VISIBLE_DEVICES NCCL_DEBUG TZ TMPDIR "
    "TORCHELASTIC_RUN_ID TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_ELASTIC_SHUTDOWN_TIMEOUT PYTORCH_ALLOC_CONF ROBUST_TRACE"
).split()
READ = (
    "PYTHONPATH PYTHONHASHSEED LD_LIBRARY_PATH OMP_PROC_BIND OMP_NUM_THREADS MKL_NUM_THREADS GOMP_CPU_AFFINITY "
    "KMP_AFFINITY OPENBLAS_NUM_THREADS TORCH_LOGS TORCHINDUCTOR_CACHE_DIR PYTORCH_JIT KINETO_LOG_LEVEL NPY_PROMOTION_STATE "
    "MALLOC_ARENA_MAX GLIBC_TUNABLES HF_HOME HF_TOKEN_PATH TRANSFORMERS_CACHE CXX HOME XDG_CACHE_HOME LANG LC_ALL"
).split()


@pytest.mark.parametrize("name", UNRELATED)
def test_what_is_read_later_does_not_matter(name: str) -> None:
    assert key.variables_read_at_import({name: "1"}, False) == {}


@pytest.mark.parametrize("name", READ)
def test_what_imports_read_matters(name: str) -> None:
    assert key.variables_read_at_import({name: "1"}, False) == {name: "1"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "TRANSFORMERS_API_KEY", "HF_HUB_SECRET", "HF_PASSWORD"])
def test_secrets_never_stand_in_an_announcement(name: str) -> None:
    assert key.variables_read_at_import({name: "hunter2"}, False) == {}


def test_the_launchers_default_for_omp_counts_as_set() -> None:
    assert key.variables_read_at_import({}, True) == {"OMP_NUM_THREADS": "1"}
    assert key.variables_read_at_import({"OMP_NUM_THREADS": "4"}, True) == {"OMP_NUM_THREADS": "4"}


#: Torch's own code, without importing all of torch.
LEAVES_ITS_DEFAULT = """
import importlib.util, os, pathlib, sys, types
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].__path__ = [str(folder)]
spec = importlib.util.spec_from_file_location("folders", folder / "_inductor/runtime/cache_dir_utils.py")
folders = importlib.util.module_from_spec(spec)
spec.loader.exec_module(folders)
folders.cache_dir()
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""


def test_what_torchs_compiler_leaves_behind_counts_as_unset() -> None:
    """A notebook that has imported it hands its default to the jobs that it starts."""
    left = subprocess.run(
        [sys.executable, "-c", LEAVES_ITS_DEFAULT],
        env={name: value for name, value in os.environ.items() if name != key.COMPILER_CACHE},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    for named, there in ((None, {}), (left, {}), (f"{left}-mine", {key.COMPILER_CACHE: f"{left}-mine"})):
        env = {} if named is None else {key.COMPILER_CACHE: named}
        print_of_it = origins.fingerprint(env, MODULES, "/", omp_threads_defaulted=False)
        assert print_of_it.variables == there


def test_the_tracers_variables_do_not_count() -> None:
    env = {"PYTHONPATH": "/mine"}
    armed = {**env, **arm_environment(env, "/steps")}
    assert key.variables_read_at_import(armed, False) == env


@pytest.mark.parametrize(
    ("path", "relative"), [("", False), ("/a", False), ("/a:/b", False), ("src", True), ("/a:", True)]
)
def test_a_relative_pythonpath_ties_a_warm_process_to_its_folder(path: str, relative: bool) -> None:
    made = origins.fingerprint({"PYTHONPATH": path}, MODULES, "/here", omp_threads_defaulted=False)
    assert made.folder == ("/here" if relative else "")


# --- what fits ---


def test_equal_fingerprints_fit() -> None:
    assert key.difference(a_fingerprint(), a_fingerprint()) == ""


def test_more_modules_than_the_job_asks_for_fit() -> None:
    assert key.difference(a_fingerprint(preload=(*MODULES, "transformers")), a_fingerprint()) == ""


DIFFERENCES = [
    ({"executable": "/other/bin/python"}, "its Python is '/other/bin/python'"),
    ({"python": "3.12.1"}, "its Python is '3.12.1'"),
    ({"folder": "/there"}, "PYTHONPATH"),
    ({"variables": {"HOME": "/home/me", "OMP_NUM_THREADS": "4"}}, "OMP_NUM_THREADS is '4' there and '1' here"),
    ({"variables": {"HOME": "/h", "OMP_NUM_THREADS": "1"}}, "HOME is '/h' there and '/home/me' here"),
    ({"variables": {"HOME": "/home/me"}}, "OMP_NUM_THREADS is unset there and '1' here"),
    ({"preload": ("torch",)}, "it has not imported torch.distributed"),
]


@pytest.mark.parametrize(("theirs", "reason"), DIFFERENCES)
def test_the_first_difference_is_named(theirs: dict[str, object], reason: str) -> None:
    assert reason in key.difference(a_fingerprint(**theirs), a_fingerprint())


def test_a_long_value_is_cut_and_stays_on_one_line() -> None:
    mine = a_fingerprint(variables={"LD_LIBRARY_PATH": "/a\n" * 100})
    reason = key.difference(a_fingerprint(variables={}), mine)
    assert "\n" not in reason
    assert len(reason) < 150


def test_a_job_of_one_worker_is_told_how_to_get_its_own() -> None:
    mine = a_fingerprint(variables={"HOME": "/home/me"})
    assert "--one-worker" in key.difference(a_fingerprint(), mine)


def test_a_job_that_wants_nothing_preloaded_gets_nothing() -> None:
    assert "no preloaded modules" in key.difference(a_fingerprint(), a_fingerprint(preload=()))


def test_the_smallest_of_those_that_fit_is_taken() -> None:
    large = an_announcement(1, preload=(*MODULES, "transformers"))
    small = an_announcement(2)
    other = an_announcement(3, executable="/other/bin/python")
    assert key.closest([other, large, small], a_fingerprint()) == (small, "")


def test_where_none_fits_the_reason_of_the_first_is_said() -> None:
    fitting, why = key.closest([an_announcement(7, python="3.9"), an_announcement(8, folder="/x")], a_fingerprint())
    assert fitting is None
    assert why.startswith("the warm process (pid 7) was not used: its Python is '3.9'")


def test_names_differ_where_fingerprints_do_and_not_by_order() -> None:
    swapped = a_fingerprint(variables={"OMP_NUM_THREADS": "1", "HOME": "/home/me"})
    assert key.name_of(a_fingerprint()) == key.name_of(swapped)
    others = [a_fingerprint(**more) for more, _ in DIFFERENCES]
    assert len({key.name_of(each) for each in (a_fingerprint(), *others)}) == len(DIFFERENCES) + 1


def test_every_version_can_read_the_head_of_an_announcement() -> None:
    head = msgspec.json.decode(msgspec.json.encode(an_announcement(5)), type=key.Head)
    assert (head.protocol, head.version, head.pid) == (key.PROTOCOL, "1", 5)


# --- what changed on disk ---


def test_a_changed_file_or_package_folder_makes_it_stale(tmp_path: Path) -> None:
    folder, file = tmp_path / "site-packages", tmp_path / "mine.py"
    folder.mkdir()
    file.write_text("1")
    fresh = msgspec.structs.replace(
        an_announcement(),
        folders={str(folder): folder.stat().st_mtime_ns},
        files={str(file): (file.stat().st_mtime_ns, file.stat().st_size)},
    )
    assert origins.stale(fresh) == ""
    file.write_text("22")
    assert "mine.py has changed" in origins.stale(fresh)
    os.utime(folder, ns=(1, 1))
    assert "installed or removed" in origins.stale(fresh)


def test_own_code_is_watched_and_the_standard_library_is_not() -> None:
    files = origins.own_files()
    assert str(Path(__file__)) in files
    assert os.path.realpath(sys.executable) in files
    assert str(Path(subprocess.__file__)) not in files


# --- the environment of a job's own warm process ---


def test_a_jobs_warm_process_keeps_what_imports_changed_and_has_the_jobs_variables() -> None:
    before = {"A": "of the daemon", "SET": "0", "OMP_NUM_THREADS": "1", "TMPDIR": "/t"}
    after = {**before, "SET": "1", "NEW": "by an import"}
    at_start, now = started_anew(before, after, {"B": "of the job", "SET": "0", "TMPDIR": "/job"})
    assert at_start == {"B": "of the job", "SET": "0", "OMP_NUM_THREADS": "1", "TMPDIR": "/t"}
    assert now == {**at_start, "SET": "1", "NEW": "by an import"}


def test_what_the_job_sets_itself_is_not_overwritten_by_an_import() -> None:
    _, now = started_anew({}, {"NEW": "by an import"}, {"NEW": "by the user"})
    assert now["NEW"] == "by the user"


# --- where they run ---


def test_a_child_has_the_surroundings_of_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert surroundings.differs(surroundings.read(child.pid), surroundings.read(os.getpid())) == ""
        child.communicate(b"\n")


def test_another_limit_is_named() -> None:
    here = surroundings.read(os.getpid())
    there = dict(here)
    name = next(name for name in here if "open files" in name)
    there[name] = "17 17 files"
    assert surroundings.differs(there, here).startswith(f"its {name} differs: 17 17 files there")


def test_another_cgroup_is_named() -> None:
    assert "cgroup differs: 0::/a there, 0::/b here" in surroundings.differs(
        {"cgroup": "0::/a\n"}, {"cgroup": "0::/b\n"}
    )


# --- where they are announced ---


def test_the_runtime_folder_is_preferred_and_one_may_be_chosen() -> None:
    assert registry.folders({}, 7) == ("/tmp/robust-run-7",)
    assert registry.folders({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == ("/run/user/7/robust-run", "/tmp/robust-run-7")
    assert registry.folders({"XDG_RUNTIME_DIR": "/run/user/7", registry.VARIABLE: "/x"}, 7) == ("/x",)


def test_a_folder_that_others_can_enter_or_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir(mode=0o700)
    assert registry.obstacle(str(good), os.getuid()) == ""
    assert "belongs to user" in registry.obstacle(str(good), os.getuid() + 1)
    (tmp_path / "link").symlink_to(good)
    assert registry.obstacle(str(tmp_path / "link"), os.getuid()) == "it is a symbolic link"
    (tmp_path / "file").write_text("")
    assert registry.obstacle(str(tmp_path / "file"), os.getuid()) == "it is no folder"
    good.chmod(0o750)
    assert registry.obstacle(str(good), os.getuid()) == "its mode is 0750, not 0700"


def test_making_a_folder_that_is_there_and_open_to_others_is_an_error_of_the_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UserError, match="0755, not 0700"):
        registry.make({registry.VARIABLE: str(tmp_path)}, os.getuid())


def test_a_lock_tells_who_holds_it_and_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "warm-x.lock")
    code = (
        "import sys; from robust_run.launcher.start.warm import registry\n"
        "assert registry.lock(sys.argv[1]) is not None; print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert registry.holder(path) == process.pid
        assert registry.lock(path) is None
        process.communicate()
    assert registry.holder(path) == 0
    descriptor = registry.lock(path)
    assert descriptor is not None
    fcntl.lockf(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def test_a_process_that_still_imports_is_not_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "warm-x.lock").write_text("")
    assert registry.find({registry.VARIABLE: str(tmp_path)}, os.getuid()) == ([], [])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("8h", 28800), ("2d", 172800), ("5", 5), ("never", None)]
)
def test_times(text: str, seconds: float | None) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "0", "nan", "inf", "1w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--idle-limit"):
        parse_duration_s(text)
