"""Runs at the start of a worker's interpreter, before the user's program: counts its steps, lets its communication be traced.

The launcher puts this folder first on the worker's PYTHONPATH (see `robust_run.tracer.files.arming`), so Python's `site` imports
this file in place of the user's own `sitecustomize`. It first undoes all of that: the program and its children see the
path and the environment that they would see without us. Then it waits for `torch.optim.optimizer` to be imported, and
registers torch's own global hook that runs after every `Optimizer.step`; and for torch.distributed, to load the recorder
beside this file. It notes what the start is spent on (`marks`), and lets a signal show the stacks. Last it hands over to the
user's `sitecustomize`.

It imports nothing but what every Python has loaded by now, and nothing of robust_run: a worker may run another Python than
the launcher. No exception of ours reaches the program: what fails is given up instead, and that is said once.

Not counted: steps of forked or spawned children, and steps that torch.compile has made part of a graph.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

OLDEST_TORCH = (2, 6)
MODULE_WITH_HOOK = "torch.optim.optimizer"
MODULE_TO_RECORD = "torch.distributed.distributed_c10d"
MODULE_OF_FUNCTIONS = "torch.distributed._functional_collectives"

said: list[str] = []
loaded: dict[str, ModuleType] = {}
on_step: list[Callable[[], None]] = []
on_first_step: list[Callable[[], None]] = []
on_functions: list[Callable[[ModuleType], None]] = []


def give_up(reason: Exception, what: str = "step counting") -> None:
    """Say once that something is not done, and why, on one line."""
    if what in said:
        return
    said.append(what)
    try:
        text = " ".join(f"{type(reason).__name__}: {reason}".split())
        sys.stderr.write(f"robust-run: {what} is off in this worker: {text}\n")
        sys.stderr.flush()
    except Exception:  # noqa: S110 - a worker without stderr cannot say it
        pass


def give_up_tracing(reason: Exception) -> None:
    """Say once that communication is not recorded."""
    give_up(reason, "tracing")


def load(name: str) -> ModuleType:
    """Return a module made of a file beside this one, or below. It is in no path and not in `sys.modules`."""
    from _frozen_importlib_external import SourceFileLoader  # that of importlib.machinery, which would be imported

    if name in loaded:
        return loaded[name]
    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    module = type(sys)(f"robust_run_{name.replace('/', '_')}")
    module.__file__ = path
    module.__dict__.update(load=load, give_up=give_up)
    code = SourceFileLoader(module.__name__, path).get_code(module.__name__)
    exec(code, module.__dict__)  # type: ignore[arg-type]  # noqa: S102 - our own file
    loaded[name] = module
    return module


def undo_arming() -> str:
    """Restore path and environment as they were before the launcher armed us, and return the path of the steps file."""
    folder = os.path.dirname(__file__)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    original = os.environ.pop("ROBUST_ARM_PYTHONPATH", None)
    if original:  # "=" and the value; only "" where there was none
        os.environ["PYTHONPATH"] = original[1:]
    elif original is not None:
        os.environ.pop("PYTHONPATH", None)
    return os.environ.pop("ROBUST_STEPS_FILE", "")


def redirect_code() -> int:
    """Have modules imported from a copy of the code where the launcher says so; return how many steps are a probation."""
    root, copy = os.environ.pop("ROBUST_CODE_ROOT", ""), os.environ.pop("ROBUST_CODE_COPY", "")
    probation, steady = os.environ.pop("ROBUST_CODE_PROBATION", ""), os.environ.pop("ROBUST_CODE_STEADY", "")
    if root and copy:
        try:
            load("startup/redirect").install(root, copy)
        except Exception as error:
            give_up(error, "importing from the copy of the code")
    elif steady:
        try:
            load("startup/steady").install(steady)
        except Exception as error:
            give_up(error, "keeping edits out")
    return int(probation) if probation.isdecimal() else 0


def count_into(path: str, probation: int = 0) -> Callable[[ModuleType], None]:
    """Return what registers the hook in a freshly executed `torch.optim.optimizer`, in this very process only."""
    armed_pid, began = os.getpid(), (tuple(sys.path), dict(os.environ))

    def register(module: ModuleType) -> None:
        if os.getpid() == armed_pid:
            version = module.torch.__version__
            if tuple(map(int, version.split(".")[:2])) < OLDEST_TORCH:
                raise RuntimeError(f"torch {version} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}")
            counting = load("counting")
            numbers, times = counting.open_cells(path)
            hook = counting.counter(numbers, times, module.torch, path, probation, on_first_step, on_step, began)
            module.register_optimizer_step_post_hook(hook)

    return register


def record_into(path: str) -> Callable[[ModuleType], None]:
    """Return what makes a freshly executed torch.distributed record its calls, in this very process only."""
    armed_pid = os.getpid()

    def record(module: ModuleType) -> None:
        try:
            library = sys.modules.get("torch._C._distributed_c10d")
            if os.getpid() != armed_pid or library is None or not os.path.exists(f"{path}.ring"):
                return
            witness = load("witness")

            def serve() -> None:
                witness.serve(f"{path}.sock", sys.modules["torch"], library)

            wrapped = make_hooks(path, module, library, serve)
            wrapped.install()
            on_functions.append(wrapped.install_functional)
            on_step.append(wrapped.ring.mark_step)
            tell_clocks = load("clocks").clocks_of(wrapped.ring, library)
            if tell_clocks is not None:
                on_step.append(tell_clocks)
            on_first_step.append(time_phases(f"{path}.phases", wrapped))
            if os.path.exists(f"{path}.reduced"):
                check_reduced(f"{path}.reduced", wrapped)
            on_first_step.append(time_loader(wrapped.ring))
            load("tracebacks").install(os.path.join(os.path.dirname(__file__), ""), path)
        except Exception as error:
            give_up_tracing(error)

    return record


def make_hooks(path: str, distributed: ModuleType, library: ModuleType, serve: Callable[[], None]) -> Any:
    """Return the hooks with their ring: those in C where the launcher has had them built, else those in Python."""
    trouble = None
    try:
        built = load("place").at_hand() if os.environ.get("ROBUST_TRACE_NATIVE") != "0" else ""
        if built:
            native = load("native")
            ring = native.NativeRing(f"{path}.ring", give_up_tracing, native.extension(built))
            return native.NativeHooks(ring, distributed, library, serve)
    except Exception as error:
        trouble = error
    ring = load("recorder").Ring(f"{path}.ring", give_up_tracing)
    if trouble is not None:  # and it was not the ring, of which one line is enough
        give_up(trouble, "recording in C")
    return load("hooks").Hooks(ring, distributed, library, serve)


def check_reduced(path: str, hooks: Any) -> None:
    """Have reduced values noted, for the launcher to compare, where it has made a file for them."""
    try:
        then = load("reduced").install(path, hooks, sys.modules["torch"])
        if then is not None:
            on_step.append(then)
    except Exception as error:
        give_up(error, "checking reduced values")


def time_phases(path: str, hooks: Any) -> Callable[[], None]:
    """Return what begins to time what steps consist of, at the first of them, in a program that uses CUDA by then."""

    def begin() -> None:
        cuda = sys.modules.get("torch.cuda")
        try:
            if os.environ.get("ROBUST_TRACE_PHASES") == "host" or (cuda and cuda.is_initialized()):
                then = load("phases").begin(path, hooks, sys.modules["torch"])
                if then is not None:
                    on_step.append(then)
        except Exception as error:
            give_up(error, "timing what steps consist of")

    return begin


def time_loader(ring: Any) -> Callable[[], None]:
    """Return what begins to time how long the program waits for its data, at the first step of one that has torch's loader."""

    def begin() -> None:
        module = sys.modules.get("torch.utils.data.dataloader")
        try:
            if module is not None:
                waits = load("loader").Waits(ring)
                waits.install(module)
                on_step.append(waits.mark)
        except Exception as error:
            give_up(error, "timing the loading of data")

    return begin


def record_functions(module: ModuleType) -> None:
    """Let the recorder, if there is one, wrap functional collectives too."""
    try:
        for tell in on_functions:
            tell(module)
    except Exception as error:
        give_up_tracing(error)


def answer_signal(path: str) -> None:
    """Let a signal show the stacks, if the launcher has made a file for them."""
    try:
        if os.path.exists(f"{path}.stacks"):
            load("witness").answer_signal(f"{path}.stacks")
    except Exception as error:
        give_up_tracing(error)


def note_start(path: str, awaited: dict[str, Callable[[ModuleType], None]]) -> None:
    """Let the launcher see what the start is spent on, if it has made a file for that. Adds to what modules are awaited for."""
    try:
        if not os.path.exists(f"{path}.marks"):
            return
        marks = load("startup/marks").MarksWriter(f"{path}.marks")
        on_first_step.append(marks.stop)
        marks.join(awaited)
        marks.watch_imports()
    except Exception as error:
        give_up(error, "timing the start")


def note_end(path: str) -> None:
    """Let the launcher see that the program ended, all exit handlers included: a crash after that is one of Python's clean-up."""
    try:
        load("exits").note_end(path, vars(sys).pop("_robust_run_at_end", None))
    except Exception as error:
        give_up(error, "noting the program's end")


def around_imports() -> dict[str, Callable[[], Callable[[], Any]]]:
    """Return what is done around the execution of modules: garbage is collected seldom, unless ROBUST_TRACE_GC=0."""
    try:
        if os.environ.get("ROBUST_TRACE_GC") != "0" and "torch" not in sys.modules:
            return dict(load("startup/fewer_collections").AROUND)
    except Exception as error:
        give_up(error, "importing with fewer garbage collections")
    return {}


def arm() -> None:
    """Undo the launcher's changes and, unless ROBUST_TRACE=0, wait for torch."""
    try:
        path = undo_arming()
        probation = redirect_code()
        if not path or os.environ.get("ROBUST_TRACE") == "0":
            return
        answer_signal(path)
        note_end(path)
        awaited = {MODULE_WITH_HOOK: count_into(path, probation), MODULE_TO_RECORD: record_into(path)}
        note_start(path, awaited)
        for name in list(awaited):
            present = sys.modules.get(name)  # where torch was imported before `site` came to us
            if present:
                awaited.pop(name)(present)
        if MODULE_OF_FUNCTIONS not in sys.modules:  # else they are wrapped with the rest
            awaited[MODULE_OF_FUNCTIONS] = record_functions
        if awaited:
            sys.meta_path.insert(0, load("startup/awaiting").WaitForModules(awaited, around_imports(), give_up))
    except Exception as error:
        give_up(error)


if __name__ == "sitecustomize":
    arm()
    # Hand over: `site` gets the user's module or the user's exception; with neither, the ImportError that it expects.
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
