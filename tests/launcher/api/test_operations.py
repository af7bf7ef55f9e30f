"""What an operator may wish, what follows from it, and what he is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted, RestartAsked
from robust_run.launcher.operator.views import operations
from robust_run.launcher.operator.views.operations import OperationRefusedError, OperatorWish
from robust_run.launcher.operator.views.status import node_views

Make = Callable[..., Any]
WISH = OperatorWish(reason="bad memory", by="ann@desk")


def evict(controller: Any, name: str, wish: OperatorWish = WISH) -> operations.Granted:
    return operations.evict(controller.facts, controller.state(), name, wish, 5.0)


def test_a_host_is_evicted_with_reason_and_name(make_controller: Make) -> None:
    granted = evict(make_controller().start(5), "gpu-3")
    assert granted.event == NodeEvicted(name="gpu-3", reason="bad memory", by="ann@desk", at_unix_s=5.0)
    assert granted.answer.done.startswith("evicted gpu-3")
    assert granted.answer.warning == ""  # a standby takes its place


@pytest.mark.parametrize(
    ("nodes", "fewest", "evicted", "warning"),
    [
        (4, 4, "gpu-1", "3 of 4 needed nodes left, 0 standbys: the job will wait for a node"),
        (4, 2, "gpu-1", "3 nodes left, 0 standbys: the job will go on with 3 nodes instead of 4"),
        (5, 4, "gpu-1", ""),
        (5, 4, "gpu-5", ""),
    ],
)
def test_the_operator_is_warned_of_what_the_job_will_lack(
    make_controller: Make, nodes: int, fewest: int, evicted: str, warning: str
) -> None:
    controller = make_controller(4, fewest).start(nodes)
    assert evict(controller, evicted).answer.warning == warning


def test_one_node_that_is_left_is_not_called_nodes(make_controller: Make) -> None:
    warning = evict(make_controller(2, 1).start(2), "gpu-1").answer.warning
    assert warning == "1 node left, 0 standbys: the job will go on with 1 node instead of 2"


def test_what_is_done_and_the_warning_do_not_contradict_each_other(make_controller: Make) -> None:
    assert "goes on without it" not in evict(make_controller(4, 4).start(4), "gpu-1").answer.done
    assert "goes on without it" in evict(make_controller(4, 2).start(4), "gpu-1").answer.done


def test_evicting_what_is_evicted_or_lost_changes_nothing_for_the_job(make_controller: Make) -> None:
    controller = make_controller().start(5)
    controller.lose(1)
    assert evict(controller, "gpu-1").answer.warning == ""
    controller.tell(NodeEvicted(name="gpu-1", reason="old", by="ann"))
    again = evict(controller, "gpu-1")
    assert again.event is None
    assert again.answer.done == "gpu-1 is evicted already: old"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gpu-33", "gpu-3"), ("gpu3", "gpu-3"), ("gpu_2", "gpu-2"), ("ppu-4", "gpu-4"), ("GPU-3", "gpu-3")],
)
def test_an_unknown_host_is_refused_with_names_like_it(make_controller: Make, typed: str, meant: str) -> None:
    with pytest.raises(OperationRefusedError, match=meant) as refused:
        evict(make_controller().start(), typed)
    assert refused.value.status == 404


def test_an_unknown_host_unlike_all_others_is_refused_with_where_to_look(make_controller: Make) -> None:
    with pytest.raises(OperationRefusedError, match="robust nodes lists them"):
        evict(make_controller().start(), "zebra")


def test_a_host_that_has_not_joined_is_forbidden_by_force(make_controller: Make) -> None:
    granted = evict(make_controller().start(), "gpu-99", OperatorWish(force=True))
    assert granted.event == NodeEvicted(name="gpu-99", reason="", by="operator", at_unix_s=5.0)


def test_a_host_may_be_named_by_its_first_label_or_its_agent(make_controller: Make) -> None:
    controller = make_controller().start()
    assert evict(controller, "id2").answer.node == "gpu-2"
    assert operations.match("gpu-1", ["gpu-1.cluster", "gpu-10.cluster"]) == "gpu-1.cluster"
    assert operations.match("gpu-1", ["gpu-1.a", "gpu-1.b"]) == ""


def test_a_job_of_one_node_cannot_lose_it(make_controller: Make) -> None:
    with pytest.raises(OperationRefusedError, match="robust stop") as refused:
        evict(make_controller(None).start(1), "gpu-1")
    assert refused.value.status == 409


def test_only_what_is_evicted_can_be_readmitted(make_controller: Make) -> None:
    controller = make_controller().start(5)
    with pytest.raises(OperationRefusedError, match="nor is any other"):
        operations.readmit(controller.state(), "gpu-1", WISH)
    controller.tell(NodeEvicted(name="gpu-5", reason="", by="ann"))
    with pytest.raises(OperationRefusedError, match="evicted are gpu-5"):
        operations.readmit(controller.state(), "gpu-1", WISH)
    granted = operations.readmit(controller.state(), "gpu-5", WISH)
    assert granted.event == NodeReadmitted(name="gpu-5", by="ann@desk")
    assert granted.answer.done == "readmitted gpu-5; it stands by"


def test_a_restart_needs_an_attempt(make_controller: Make) -> None:
    controller = make_controller().start()
    granted = operations.restart(controller.state(), WISH)
    assert granted.event == RestartAsked(reason="bad memory", by="ann@desk")
    controller.tell(granted.event)
    with pytest.raises(OperationRefusedError, match="attempt 0 is being ended"):
        operations.restart(controller.state(), WISH)


def test_a_stop_is_a_sigterm_and_a_second_one_needs_to_say_now(make_controller: Make) -> None:
    controller = make_controller().start()
    first = operations.stop(controller.facts, controller.state(), WISH)
    assert first.event == SignalReceived(signal=15, by="ann@desk")
    controller.tell(first.event)
    assert operations.stop(controller.facts, controller.state(), WISH).event is None
    urgent = operations.stop(controller.facts, controller.state(), OperatorWish(now=True))
    assert urgent.event == SignalReceived(signal=15, again=True, by="operator")


def test_nothing_is_done_to_a_job_that_is_over(make_controller: Make) -> None:
    controller = make_controller().start()
    controller.tell(SignalReceived(signal=15))
    controller.end_attempt()
    for wish in (
        lambda: evict(controller, "gpu-1"),
        lambda: operations.readmit(controller.state(), "gpu-1", WISH),
        lambda: operations.restart(controller.state(), WISH),
        lambda: operations.stop(controller.facts, controller.state(), WISH),
    ):
        with pytest.raises(OperationRefusedError, match="the job is over") as refused:
            wish()
        assert refused.value.status == 409


def test_text_from_outside_is_one_short_printable_line(make_controller: Make) -> None:
    granted = evict(make_controller().start(), "gpu-1", OperatorWish(reason="a\nb\x1b[2J" + "x" * 10_000, by="\r\n"))
    assert isinstance(granted.event, NodeEvicted)
    assert granted.event.reason.isprintable()
    assert len(granted.event.reason) <= 500
    assert granted.event.by == "operator"


def test_a_host_that_was_set_aside_is_seen_and_can_be_taken_back(make_controller: Make) -> None:
    controller = make_controller().start(5)
    member = next(each for each in controller.state().members.values() if each.info.name == "gpu-5")
    member.aside = "it failed there again"
    seen = {each.name: each.reason for each in node_views(controller.state()).nodes}
    assert seen["gpu-5"] == "set aside, is taken last: it failed there again"
    granted = operations.readmit(controller.state(), "gpu-5", WISH)
    assert granted.event == NodeReadmitted(name="gpu-5", by="ann@desk")
    controller.tell(granted.event)
    assert member.aside == ""
    with pytest.raises(OperationRefusedError, match="is not evicted"):
        operations.readmit(controller.state(), "gpu-5", WISH)
