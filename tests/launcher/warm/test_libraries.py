"""What libraries do with processes, threads and random numbers works in a forked worker."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path

import pytest
from forks import Ended, Forker, environment, warm_process


def run(forker: Forker, place: Path, program: str, env: dict[str, str] | None = None, **more: object) -> Ended:
    (place / "train.py").write_text(textwrap.dedent(program))
    return forker.run(("train.py",), place, env or environment(), **more)


METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize("method", METHODS)
def test_pools_find_the_functions_and_classes_of_main(forker: Forker, tmp_path: Path, method: str) -> None:
    program = f"""
        import multiprocessing as mp, os
        from concurrent.futures import ProcessPoolExecutor
        class Point:
            def __init__(self, x): self.x = x
        def double(point): return Point(2 * point.x)
        if __name__ == '__main__':
            context = mp.get_context('{method}')
            os.makedirs('sub'); os.chdir('sub')
            with context.Pool(2) as pool: print([p.x for p in pool.map(double, [Point(1), Point(2)])])
            with ProcessPoolExecutor(2, mp_context=context) as pool: print(pool.submit(double, Point(4)).result().x)
            queue = context.Queue()
            child = context.Process(target=queue.put, args=(7,), name='putter')
            child.start(); print(queue.get(), child.name); child.join(); print(child.exitcode)
    """
    assert run(forker, tmp_path, program) == (0, "[2, 4]\n8\n7 putter\n0\n", "")


@pytest.mark.parametrize("method", METHODS)
def test_data_loaders_have_workers(forker: Forker, tmp_path: Path, method: str) -> None:
    workers = 2 if method == "fork" else 1  # others import torch anew
    program = f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.tensor(i * i)
        if __name__ == '__main__':
            loader = DataLoader(Squares(), batch_size=4, num_workers={workers}, multiprocessing_context='{method}')
            print([batch.tolist() for batch in loader])
    """
    assert run(forker, tmp_path, program) == (0, "[[0, 1, 4, 9], [16, 25, 36, 49]]\n", "")


def test_torch_multiprocessing_spawns(forker: Forker, tmp_path: Path) -> None:
    program = """
        import torch, torch.multiprocessing as mp
        def work(rank, shared): shared[rank] = rank + 1
        if __name__ == '__main__':
            shared = torch.zeros(1).share_memory_()
            mp.spawn(work, args=(shared,), nprocs=1)
            print(shared.tolist())
    """
    assert run(forker, tmp_path, program) == (0, "[1.0]\n", "")


def test_programs_can_be_started(forker: Forker, tmp_path: Path) -> None:
    program = """
        import asyncio, os, subprocess, sys
        print(subprocess.run([sys.executable, '-c', 'import os; print(os.environ["RANK"])'], capture_output=True).stdout)
        async def main():
            process = await asyncio.create_subprocess_exec(sys.executable, '-c', 'exit(4)')
            return await process.wait()
        print(asyncio.run(main()), os.system('exit 3') >> 8)
    """
    assert run(forker, tmp_path, program, environment(RANK="5")) == (0, "b'5\\n'\n4 3\n", "")


def test_torch_computes_in_parallel_and_backward(forker: Forker, tmp_path: Path) -> None:
    program = """
        import os, torch
        import torch.distributed as dist
        from torch import nn
        torch.ones(1 << 20).sin().sum()
        model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model(torch.randn(2, 4, 16)).sum().backward()
        print(all(p.grad is not None for p in model.parameters()), torch.get_num_threads())
        dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=0, world_size=1)
        t = torch.ones(1); dist.all_reduce(t); print(t.item()); dist.destroy_process_group()
    """
    assert run(forker, tmp_path, program) == (0, "True 2\n1.0\n", "")


@pytest.mark.timeout(600)  # a compiler and its helpers, on a machine that may be busy
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler, g++, to be installed"
)
def test_torch_compiles_with_backward(forker: Forker, tmp_path: Path) -> None:
    program = """
        import torch, torch._inductor.config as config
        config.cpp_cache_precompile_headers = False  # which pays off with the tenth graph
        config.cpp.vec_isa_ok = True  # else a compiler tries what /proc/cpuinfo says already
        @torch.compile
        def f(x): return (x.sin() * x).sum()
        if __name__ == '__main__':
            x = torch.ones(8, requires_grad=True)
            f(x).backward()
            expected = x.detach().cos() + x.detach().sin()
            print(torch.allclose(x.grad, expected))
    """
    # A cache of its own: the compiler must really run.
    cache = f"import os; os.environ['TORCHINDUCTOR_CACHE_DIR'] = {str(tmp_path / 'cache')!r}\n"
    code, out, err = run(forker, tmp_path, cache + textwrap.dedent(program))
    assert (code, out) == (0, "True\n"), err
    assert any((tmp_path / "cache").rglob("*.so"))


DRAWS = """
    import random, tempfile, uuid, multiprocessing, torch, numpy
    print(random.random())
    print(numpy.random.rand())
    print(torch.rand(1, dtype=torch.float64).item())
    print(torch.initial_seed())
    print(uuid.uuid4(), next(tempfile._get_candidate_names()))
    print(bytes(multiprocessing.current_process().authkey).hex())
"""


def test_ranks_do_not_share_random_numbers(forker: Forker, tmp_path: Path) -> None:
    first, second = (run(forker, tmp_path, DRAWS).out.splitlines() for _ in range(2))
    assert len(first) == len(second) == 6
    assert [a for a, b in zip(first, second, strict=True) if a == b] == []


def test_a_seed_gives_the_draws_it_gives_anywhere(forker: Forker, tmp_path: Path) -> None:
    import torch

    program = "import torch; torch.manual_seed(7); print(torch.rand(3).tolist())"
    drawn = run(forker, tmp_path, program).out
    assert drawn == f"{torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()}\n"


@pytest.mark.parametrize(
    ("variables", "threads"), [({}, "2"), ({"OMP_NUM_THREADS": "3"}, "3"), ({"OMP_NUM_THREADS": "1,4"}, "1")]
)
def test_torch_has_as_many_threads_as_the_workers_own_variable_says(
    forker: Forker, tmp_path: Path, variables: dict[str, str], threads: str
) -> None:
    program = "import torch; print(torch.get_num_threads()); torch.ones(1 << 20).sin().sum()"
    assert run(forker, tmp_path, program, environment(**variables)) == (0, f"{threads}\n", "")


def test_the_place_of_the_worker_is_taken_on(forker: Forker, tmp_path: Path) -> None:
    program = "import os, time; print(sorted(os.sched_getaffinity(0)), oct(os.umask(0)), time.tzname[0], os.getcwd())"
    cpu = min(os.sched_getaffinity(0))
    seen = run(forker, tmp_path, program, environment(TZ="XYZ-3"), cpus=(cpu,), umask=0o77)
    assert seen == (0, f"[{cpu}] 0o77 XYZ {tmp_path}\n", "")


def test_code_that_changed_since_the_fork_is_found(forker: Forker, tmp_path: Path) -> None:
    program = "import late; print(late.value)"
    for value in (1, 2):
        (tmp_path / "late.py").write_text(f"value = {value} * 1{'0' * value}\n")
        assert run(forker, tmp_path, program).out == f"{value * 10**value}\n"


def test_the_users_own_start_up_code_runs_in_every_worker(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, builtins; builtins.started_by = os.getpid()\n")
    with warm_process(tmp_path, str(tmp_path), with_torch=False) as forker:
        env = environment()
        env["PYTHONPATH"] += os.pathsep + str(tmp_path)
        program = "import os, sitecustomize; print(started_by == os.getpid(), sitecustomize.__file__)"
        assert run(forker, tmp_path, program, env) == (0, f"True {tmp_path / 'sitecustomize.py'}\n", "")


@pytest.mark.parametrize(
    ("variables", "more", "reason"),
    [
        ({"MALLOC_ARENA_MAX": "1"}, {}, "the imports may have read MALLOC_ARENA_MAX, which this worker has otherwise"),
        ({}, {"cpus": (100_000,)}, "cannot take on its CPUs: "),
        ({}, {"agent_pid": 2**22 + 1}, "cannot take on its scheduling: ProcessLookupError"),
        ({"A=B": "1", "ROBUST_A\0": "1"}, {}, "the imports may have read A=B"),
        ({"ROBUST_A\0": "1"}, {}, "cannot take on its environment: ValueError"),
    ],
)
def test_what_cannot_be_taken_on_is_named_and_nothing_runs(
    forker: Forker, tmp_path: Path, variables: dict[str, str], more: dict[str, object], reason: str
) -> None:
    code, out, err = run(forker, tmp_path, "print('ran')", environment(**variables), **more)
    assert (code, out) == (99, "")
    assert err.startswith(reason)
    assert err.count("\n") == 1


def test_a_folder_that_is_gone_is_named(forker: Forker, tmp_path: Path) -> None:
    code, out, err = forker.run(("-c", "print('ran')"), tmp_path / "gone", environment())
    assert (code, out) == (99, "")
    assert err.startswith("cannot take on its folder and umask: FileNotFoundError")


def test_a_process_that_runs_a_program_already_cannot_run_another() -> None:
    from robust_run.launcher.agent.warm.become import CannotBecome
    from robust_run.launcher.agent.warm.identity import Identity
    from robust_run.launcher.agent.warm.run import run as run_identity

    with pytest.raises(CannotBecome, match="runs a program already"):
        run_identity(Identity(argv=("x.py",), env={}, cwd="/", umask=0, agent_pid=1))
