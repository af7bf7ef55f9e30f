"""What the calls of process groups move: elements, dtype, and the root or peer as a rank of the group, from their arguments.

`sitecustomize` loads this file by its path. What all ranks must agree on is chosen so that it can be compared between them: of
scatter and gather, whose lists only the root has, the one tensor that every rank gives or gets.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Describe = Callable[[Any], tuple[int, Any, int]]

TENSORS_ADDED = 16
GATHERED_KEPT = 4096


def size(tensors: Any) -> tuple[int, Any]:
    """Return the elements and the dtype of a tensor or of lists of tensors; long lists are taken to be even."""
    if not isinstance(tensors, (list, tuple)):
        return tensors.numel(), tensors.dtype
    if len(tensors) == 1 and not isinstance(tensors[0], list):
        return tensors[0].numel(), tensors[0].dtype
    if not tensors:
        return 0, None
    numel, dtype = size(tensors[0])
    if len(tensors) > TENSORS_ADDED:
        return numel * len(tensors), dtype
    return sum(size(tensor)[0] for tensor in tensors), dtype


def root_of(arguments: Any, place: int) -> int:
    """Return the root that a rooted collective was given, in its options or by itself."""
    given = arguments[place]
    return int(given if isinstance(given, int) else given.rootRank)


def moves_first(arguments: Any) -> tuple[int, Any, int]:
    """all_reduce: its tensors."""
    return *size(arguments[0]), -1


def moves_second(arguments: Any) -> tuple[int, Any, int]:
    """all_gather, reduce_scatter: what this rank puts in, after what it gets."""
    return *size(arguments[1]), -1


def roots_first(arguments: Any) -> tuple[int, Any, int]:
    """broadcast, reduce: a tensor, and the root."""
    return *size(arguments[0]), root_of(arguments, 1)


def gathers(arguments: Any) -> tuple[int, Any, int]:
    """gather: what each rank puts in; only the root has a list to gather into."""
    return *size(arguments[1]), root_of(arguments, 2)


def scatters(arguments: Any) -> tuple[int, Any, int]:
    """scatter: what each rank gets; only the root has a list to scatter."""
    return *size(arguments[0]), root_of(arguments, 2)


def exchanges_lists(arguments: Any) -> tuple[int, Any, int]:
    """all_to_all of lists: comparable only if all parts are even."""
    numels = {tensor.numel() for tensor in arguments[1]}
    dtype = arguments[1][0].dtype
    return (numels.pop() * len(arguments[1]) if len(numels) == 1 else -1), dtype, -1


def exchanges(arguments: Any) -> tuple[int, Any, int]:
    """all_to_all of one tensor: comparable only without split sizes."""
    numel, dtype = size(arguments[1])
    return (-1 if arguments[2] or arguments[3] else numel), dtype, -1


def meets(_: Any) -> tuple[int, Any, int]:
    """barrier: moves nothing."""
    return 0, None, -1


def sends(arguments: Any) -> tuple[int, Any, int]:
    """send, recv: tensors, and the peer."""
    return *size(arguments[0]), int(arguments[1])


def backends_of(distributed: Any, process_group: Any) -> str:
    """Return what moves the tensors of a group, by device: `cpu:gloo,cuda:nccl`; "" where torch does not know the group."""
    try:
        return str(distributed.get_backend_config(process_group))
    except Exception:
        return ""


def meets_by_tag(backends: str) -> bool:
    """Whether sends and receives of tensors on the CPU meet by their tags: gloo's do; NCCL's have none, MPI has one for any."""
    return "cpu:gloo" in backends


def tag_of(arguments: Any) -> int:
    """Return the tag of a send or recv with gloo, the last of its arguments; 0 for tensors that it does not move."""
    tag = arguments[-1] if len(arguments) > 1 else 0
    if not isinstance(tag, int) or not 0 <= tag < 1 << 31 or arguments[0][0].device.type != "cpu":
        return 0
    return tag


def gather(gathered: dict[int, list[int]], key: int, index: int) -> None:
    """Note a call that is coalesced with others of its group, if any is. More than programs coalesce: an exception has left that
    open.
    """
    indexes = gathered.get(key, [])
    indexes.append(index)
    if len(indexes) > GATHERED_KEPT:
        gathered.pop(key, None)


#: Method of a process group, operation, what it moves. Names that a torch does not have are passed over.
METHODS: tuple[tuple[str, str, Describe], ...] = (
    ("allreduce", "all_reduce", moves_first),
    ("allreduce_coalesced", "all_reduce", moves_first),
    ("broadcast", "broadcast", roots_first),
    ("reduce", "reduce", roots_first),
    ("allgather", "all_gather", moves_second),
    ("_allgather_base", "all_gather", moves_second),
    ("all_gather_single", "all_gather", moves_second),
    ("allgather_coalesced", "all_gather", moves_second),
    ("allgather_into_tensor_coalesced", "all_gather", moves_second),
    ("all_gather_single_coalesced", "all_gather", moves_second),
    ("gather", "gather", gathers),
    ("scatter", "scatter", scatters),
    ("reduce_scatter", "reduce_scatter", moves_second),
    ("_reduce_scatter_base", "reduce_scatter", moves_second),
    ("reduce_scatter_single", "reduce_scatter", moves_second),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter", moves_second),
    ("reduce_scatter_single_coalesced", "reduce_scatter", moves_second),
    ("alltoall", "all_to_all", exchanges_lists),
    ("alltoall_base", "all_to_all", exchanges),
    ("all_to_all_single", "all_to_all", exchanges),
    ("barrier", "barrier", meets),
    ("send", "send", sends),
    ("recv", "recv", sends),
    ("recv_anysource", "recv_any", moves_first),
)
