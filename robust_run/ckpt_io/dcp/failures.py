"""What of torch's own way with errors a user should not have to know.

`torch.distributed.checkpoint` collects the errors of all ranks in a `CheckpointException`, which derives from BaseException:
`except Exception` around `dcp.load` does not catch it. `save` and `load` of this package raise one of the errors in it instead,
the same on every rank. A program that calls `dcp.save` and `dcp.load` with a writer or reader of ours finds them in `.failures`.
"""

from __future__ import annotations

import copyreg
import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from robust_run.ckpt_io.errors import CheckpointError, PeerFailed
from robust_run.errors import RobustRunError

P = ParamSpec("P")
R = TypeVar("R")


def travels(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate what torch calls and whose errors it sends to other ranks: they arrive.

    torch pickles an error without trying whether it can be read again; one that cannot ends the coordinator with an error of
    pickle, and leaves all others waiting. By itself an error is read by calling its class with its message, which no class
    survives that is made of other things; ours are taken apart and put together without that.
    """

    @functools.wraps(method)
    def calls(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            if isinstance(error, RobustRunError) and not _arrives(error):
                copyreg.pickle(type(error), _taken_apart)
            if _arrives(error):
                raise
            raise CheckpointError(f"{type(error).__name__}: {error}") from error

    return calls


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise one error in the place of torch's collection of them, which is its cause."""
    try:
        yield
    except CheckpointException as collected:
        raise plain(collected) from collected


def plain(error: BaseException) -> BaseException:
    """Return the error that says most of a collection of torch's: the first of ours, else the first that any rank had.

    Those who only waited for another rank are asked last. What is no collection is returned as it is.
    """
    if not isinstance(error, CheckpointException):
        return error
    errors = [found for _, (found, _) in sorted(error.failures.items()) if isinstance(found, Exception)]
    return min(errors, key=_rank_of_news, default=error)


def _rank_of_news(error: Exception) -> int:
    if isinstance(error, PeerFailed):
        return 2
    return 0 if isinstance(error, RobustRunError) else 1


def _arrives(error: Exception) -> bool:
    """Whether pickle gives back an error of the same kind and text."""
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes, as torch will do it
    except Exception:
        return False
    return type(copy) is type(error) and str(copy) == str(error)


def _taken_apart(error: RobustRunError) -> tuple[Callable[..., RobustRunError], tuple[Any, ...]]:
    return _put_together, (type(error), error.args, vars(error))


def _put_together(kind: type[RobustRunError], args: tuple[Any, ...], attributes: dict[str, Any]) -> RobustRunError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error
