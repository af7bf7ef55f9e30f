"""Which rung a machine gets, and that each better one has its reason."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from robust_run.mounts.ladder import KernelFacts as Kernel
from robust_run.snapshot.rules.restore_ladder import LADDER, NAMESPACED, NothingLeft, RestoreFacts, choose

reasons = some.sampled_from(("", "no"))
machines = some.builds(
    RestoreFacts,
    kernel=some.builds(Kernel, **dict.fromkeys(Kernel.__struct_fields__, reasons)),
    lazy=some.booleans(),
    **{name: reasons for name in RestoreFacts.__struct_fields__ if name not in ("kernel", "lazy")},
)


@pytest.mark.parametrize(
    ("facts", "rung"),
    [
        (RestoreFacts(), "mount"),
        (RestoreFacts(kernel=Kernel(loop="no loop device")), "userns"),
        (RestoreFacts(kernel=Kernel(mount_namespace="not root")), "userns"),
        (RestoreFacts(kernel=Kernel(mount_namespace="not root", fuse="no /dev/fuse")), "extract"),
        (RestoreFacts(whiteouts="3 names were removed"), "extract"),
        (RestoreFacts(kernel=Kernel(mount_namespace="not root", user_namespace="forbidden")), "in-place"),
        (RestoreFacts(same_path="/opt/env is no folder", in_place="it is shared"), "target"),
        (RestoreFacts(unsquashfs="not installed", same_path="/opt/env is no folder"), "commands"),
        (RestoreFacts(kernel=Kernel(squashfs="no", fuse="no"), lazy=True, unsquashfs="no"), "commands"),
    ],
)
def test_a_machine_gets_the_best_rung_that_it_allows(facts: RestoreFacts, rung: str) -> None:
    assert choose(facts, {}).rung == rung


def test_what_failed_is_not_tried_again_and_its_reason_is_kept() -> None:
    choice = choose(RestoreFacts(), {"mount": "wrong fs type", "userns": "it was killed"})
    assert choice.sentence() == "extract (not mount: wrong fs type; not userns: it was killed)"


def test_where_nothing_is_left_every_reason_is_said() -> None:
    with pytest.raises(NothingLeft, match="not mount: a; not userns: b; not extract: c") as caught:
        choose(RestoreFacts(), {"mount": "a", "userns": "b", "extract": "c"}, NAMESPACED)
    again = msgspec.json.decode(msgspec.json.encode(caught.value.refused), type=tuple[tuple[str, str], ...])
    assert again == (("mount", "a"), ("userns", "b"), ("extract", "c"))


@given(machines, some.sets(some.sampled_from(LADDER)))
def test_each_better_rung_that_is_allowed_has_a_reason(facts: RestoreFacts, allowed: set[str]) -> None:
    try:
        choice = choose(facts, {}, allowed)
    except NothingLeft as error:
        assert {each.rung for each in error.refused} == allowed
        return
    better = [rung for rung in LADDER[: LADDER.index(choice.rung)] if rung in allowed]
    assert [each.rung for each in choice.refused] == better
    assert all(each.reason for each in choice.refused)


@given(machines)
def test_an_image_that_is_not_here_is_never_unpacked(facts: RestoreFacts) -> None:
    try:
        choice = choose(msgspec.structs.replace(facts, lazy=True), {}, NAMESPACED)
    except NothingLeft:
        return
    assert choice.rung in ("mount", "userns")
    assert not facts.kernel.fuse
