"""Which rung is taken, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.mounts.errors import MountRefused
from robust_run.mounts.ladder import KernelFacts
from robust_run.prefetch.rules.mount_ladder import LADDER, Need, choose

ROOT = {
    "mount_namespace": "", "user_namespace": "not tried", "fuse": "", "squashfs": "", "loop": "", "overlay": "",
    "overlay_upper": "", "squashfuse": "", "unsquashfs": "",
}  # fmt: skip
USER = {**ROOT, "mount_namespace": "no root", "user_namespace": "", "squashfs": "only root", "loop": "only root"}


def facts(base: dict[str, Any], **changes: Any) -> KernelFacts:
    return KernelFacts(**{**base, **changes})


@pytest.mark.parametrize(
    ("given_facts", "rung", "namespace"),
    [
        (facts(ROOT), "kernel", "root"),
        (facts(ROOT, loop="no loop device"), "userns", "root"),
        (facts(ROOT, squashfs="none", squashfuse="it is not installed"), "unpack", "root"),
        (facts(ROOT, fuse="not there"), "unpack", "root"),
        (facts(USER), "userns", "user"),
        (facts(USER, fuse="/dev/fuse: Permission denied"), "unpack", "user"),
        (facts(USER, squashfuse="it is not installed"), "unpack", "user"),
    ],
)
def test_the_best_rung_that_is_possible_is_taken(given_facts: KernelFacts, rung: str, namespace: str) -> None:
    chosen = choose(given_facts, Need(served=True))
    assert (chosen.rung, chosen.namespace) == (rung, namespace)
    assert all(f"not {each.rung}: {each.reason}" in chosen.sentence() and each.reason for each in chosen.refused)


def test_without_a_server_the_kernel_needs_no_fuse() -> None:
    assert choose(facts(ROOT, fuse="not there"), Need(served=False)).rung == "kernel"


def test_without_overlayfs_parts_are_bound_but_nothing_can_be_written() -> None:
    old = facts(USER, overlay="before Linux 5.11", overlay_upper="before Linux 5.11")
    assert choose(old, Need(served=True)).tree == "binds"
    with pytest.raises(MountRefused, match=r"--image-writable needs overlayfs: before Linux 5.11"):
        choose(old, Need(served=True, writable=True))


def test_where_nothing_is_possible_all_reasons_are_given() -> None:
    with pytest.raises(MountRefused) as caught:
        choose(
            facts(USER, user_namespace="forbidden here", unsquashfs="unsquashfs is not installed"), Need(served=True)
        )
    assert str(caught.value).count("; ") == 2
    assert "kernel: no root" in str(caught.value)
    assert "unpack: unsquashfs is not installed" in str(caught.value)


def test_a_rung_that_was_excluded_is_not_taken() -> None:
    assert choose(facts(ROOT), Need(served=True), ("unpack",)).rung == "unpack"


_reason = st.sampled_from(["", "a reason"])


@given(
    st.builds(
        KernelFacts, mount_namespace=_reason, user_namespace=_reason, fuse=_reason, squashfs=_reason, loop=_reason,
        overlay=_reason, overlay_upper=_reason, squashfuse=_reason, unsquashfs=_reason,
    ),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_every_rung_above_the_chosen_one_has_a_reason(found: KernelFacts, served: bool, writable: bool) -> None:
    try:
        chosen = choose(found, Need(served=served, writable=writable))
    except MountRefused:
        return
    assert [each.rung for each in chosen.refused] == list(LADDER[: LADDER.index(chosen.rung)])
    assert chosen.namespace != "none"
    assert chosen.rung != "kernel" or chosen.namespace == "root"
