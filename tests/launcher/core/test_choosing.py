"""Which checkpoint an attempt starts from: stories of nodes that see the same, and of nodes that do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.seen import FolderLook, SeenCheckpoint
from robust_run.launcher.core.resume.choosing import (
    LEAST_S,
    OUTAGE_S,
    TROUBLE_S,
    Again,
    Next,
    Nothing,
    ResumeChoice,
    ResumeWait,
    decide,
)
from robust_run.launcher.core.resume.looks import ANSWER_S, DELAY_S, MOST_OF_ALL, NOTHING_S, Choosing, LookAsked
from robust_run.launcher.model.resume_events import PassedOver, ResumePoint, SavedCheckpoint

NOW_UNIX_S = 1e9


def one(
    step: int | None, fault: str | None = "", *, uuid: str = "", name: str = "", age_s: float = 600.0, **more
) -> SeenCheckpoint:
    """A checkpoint, whole unless a fault is given; None: not looked at. Ten minutes old, and a second for each earlier step."""
    return SeenCheckpoint(
        name=name or f"step-{step}",
        uuid=uuid or f"u{step}",
        step=step,
        created_s=NOW_UNIX_S - age_s + (step or 0),
        fault=fault,
        **more,
    )


def sees(*seen: SeenCheckpoint, **more) -> FolderLook:
    return FolderLook(seen=tuple(sorted(seen, key=lambda each: each.age, reverse=True)), **more)


class Nodes:
    """The nodes of an attempt, and what each sees: of a function, what it sees at a time, and by these names."""

    def __init__(self, *views: FolderLook | Callable[[float], FolderLook | None] | None, **more) -> None:
        self.views = {f"node-{number}": view for number, view in enumerate(views)}
        self.choosing = Choosing(attempt=1, of=len(views), began_s=0.0, folder="/ckpt", **more)
        self.now_s = 0.0
        self.asked: list[Again] = []
        self.said: list[str] = []
        self.choosing.asked = {node: LookAsked(number=1) for node in self.views}
        self._answer(tuple(self.views))

    def _answer(self, nodes: tuple[str, ...]) -> None:
        names = self.choosing.names
        for node in nodes:
            view = self.views[node]
            look = view(self.now_s) if callable(view) else view
            if look is not None:
                looked = tuple(
                    msgspec.structs.replace(each, fault="") if each.name in names and each.fault is None else each
                    for each in look.seen
                )
                self.choosing.asked[node] = LookAsked(
                    number=1, look=msgspec.structs.replace(look, seen=looked), is_due=False
                )
            else:
                self.choosing.asked[node].is_due = True

    def next(self) -> Next:
        return decide(self.choosing, self.now_s, NOW_UNIX_S + self.now_s, lambda node: node)

    def choose(self) -> ResumeChoice | Nothing:
        """Go on until it is settled."""
        for _ in range(2000):
            match self.next():
                case ResumeWait(until_s=until_s, why=why):
                    assert until_s > self.now_s, "it waits for what is over"
                    self.now_s = until_s
                    self.said.append(why)
                case Again() as again:
                    self.asked.append(again)
                    self.said.append(again.why)
                    free = tuple(node for node in again.nodes if not self.choosing.asked[node].is_due)
                    self.now_s += again.after_s if free else 1.0
                    self.choosing.rounds += bool(free)
                    self.choosing.most = max(self.choosing.most, again.most)
                    self.choosing.names.update(again.names)
                    self._answer(free)
                case settled:
                    return settled
        raise AssertionError(f"it does not end: {self.asked[-3:]}")


def chosen(nodes: Nodes) -> ResumeChoice:
    choice = nodes.choose()
    assert isinstance(choice, ResumeChoice), choice
    return choice


def step_of(nodes: Nodes) -> int | None:
    seen = chosen(nodes).seen
    assert seen is not None
    return seen.step


# --- all see the same


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_newest_that_all_see_is_taken_at_once(count: int) -> None:
    nodes = Nodes(*[sees(one(1), one(2), one(3))] * count)
    choice = chosen(nodes)
    assert choice.seen == one(3)
    assert (nodes.now_s, nodes.asked, choice.passed_over, choice.unsure) == (0.0, [], (), ())


def test_from_the_beginning_means_that_all_looked_and_none_saw_any() -> None:
    assert chosen(Nodes(sees(), sees(), sees())) == ResumeChoice(seen=None)


def test_what_lacks_a_part_everywhere_is_passed_over_at_once() -> None:
    fault = "part 00000-1.part is missing on /b/step-3"
    for count in (1, 3):
        nodes = Nodes(*[sees(one(1), one(2), one(3, fault))] * count)
        choice = chosen(nodes)
        assert choice.seen == one(2) and nodes.now_s == 0.0
        (over,) = choice.passed_over
        assert (over.step, over.uuid, over.why) == (3, "u3", fault if count == 1 else f"node-0: {fault}")


def test_what_ranks_found_damaged_never_comes_back() -> None:
    known = {"u3": PassedOver(step=3, uuid="u3", name="step-3", why="rank 1: unit 5 has a wrong digest")}
    choice = chosen(Nodes(sees(one(2), one(3)), sees(one(2), one(3)), avoid=known))
    assert choice.seen == one(2)
    assert choice.passed_over == (known["u3"],)


def test_a_damaged_manifest_is_told_if_it_is_newer() -> None:
    ruined = SeenCheckpoint(name="step-9", created_s=NOW_UNIX_S, fault="its manifest is damaged")
    choice = chosen(Nodes(sees(one(2), ruined)))
    assert choice.seen == one(2)
    assert choice.passed_over == (PassedOver(name="step-9", why="its manifest is damaged"),)


def test_what_rolled_back_code_wrote_comes_last() -> None:
    views = [sees(one(1), one(2), one(3, written_by="run 2-bb"))] * 2
    choice = chosen(Nodes(*views, untrusted=("run 2-bb",)))
    assert choice.seen == one(2)
    assert [each.why for each in choice.passed_over] == ["code that was rolled back wrote it"]
    assert step_of(Nodes(sees(one(3, written_by="run 2-bb")), untrusted=("run 2-bb",))) == 3, (
        "where there is nothing else"
    )


def test_parts_that_were_not_looked_at_are_looked_at_first() -> None:
    nodes = Nodes(sees(one(1), one(2)), sees(one(1, None), one(2, None)))
    assert chosen(nodes).seen == one(2)
    (again,) = nodes.asked
    assert (again.nodes, again.names, again.after_s) == (("node-1",), ("step-2",), 0.0)


# --- some see an older state


def test_a_node_whose_view_is_old_looks_again_until_it_sees_the_newest() -> None:
    def late(now_s: float) -> FolderLook:
        return sees(one(1), one(2), one(3, age_s=5)) if now_s > 1.5 else sees(one(1), one(2))

    nodes = Nodes(sees(one(1), one(2), one(3, age_s=5)), late)
    assert step_of(nodes) == 3
    assert nodes.now_s < 3.0
    assert all((again.nodes, again.names) == (("node-1",), ("step-3",)) for again in nodes.asked)
    assert "node-1 does not see step 3 yet, which node-0 sees" in nodes.said


def test_a_view_that_stays_old_costs_no_longer_than_a_cache_lives_and_then_the_older_is_taken() -> None:
    nodes = Nodes(sees(one(1), one(2), one(3, age_s=10)), sees(one(1), one(2)))
    choice = chosen(nodes)
    assert choice.seen == one(2)
    assert LEAST_S <= nodes.now_s <= DELAY_S + 3
    assert [(each.step, each.why) for each in choice.passed_over] == [(3, "node-1 does not see it")]


def test_no_longer_is_waited_than_what_would_be_lost() -> None:
    nodes = Nodes(sees(one(2, age_s=14), one(3, age_s=5)), sees(one(2, age_s=14)))
    assert step_of(nodes) == 2
    assert LEAST_S <= nodes.now_s <= 14, "ten seconds of training are not worth a minute"


def test_what_is_older_than_any_cache_is_not_waited_for() -> None:
    nodes = Nodes(sees(one(2), one(3)), sees(one(2)))
    assert step_of(nodes) == 2
    assert nodes.now_s <= LEAST_S + 3


def test_a_part_that_one_node_does_not_see_yet_is_a_late_view_too() -> None:
    def late(now_s: float) -> FolderLook:
        return sees(one(2), one(3, "" if now_s > 1 else "part 00000-0.part is missing on /ckpt/step-3", age_s=4))

    assert step_of(Nodes(sees(one(2), one(3, age_s=4)), late)) == 3


def test_the_same_name_saved_anew_is_another_checkpoint() -> None:
    old, new = one(3, uuid="old", name="last"), one(3, uuid="new", name="last", age_s=1)

    def late(now_s: float) -> FolderLook:
        return sees(one(2), new) if now_s > 1 else sees(one(2), old)

    choice = chosen(Nodes(sees(one(2), new), late))
    assert choice.seen is not None and choice.seen.uuid == "new"
    choice = chosen(Nodes(sees(one(2), new), sees(one(2), old)))
    assert choice.seen == one(2), "never one on this node and another on that"


# --- some cannot say


def test_a_node_that_hangs_is_waited_for_a_while_and_told_the_same() -> None:
    nodes = Nodes(sees(one(1), one(2)), None)
    choice = chosen(nodes)
    assert choice.seen == one(2) and nodes.now_s == ANSWER_S
    assert choice.unsure == (f"node-1 did not say within {ANSWER_S:g} s what it sees",)
    assert nodes.said[0] == "node-1 has not said yet which checkpoints are in /ckpt"


@pytest.mark.parametrize("others", [[], [sees()]])
def test_where_no_node_that_sees_anything_answers_nothing_begins(others: list[FolderLook]) -> None:
    nodes = Nodes(*others, None)
    settled = nodes.choose()
    assert isinstance(settled, Nothing) and settled.may_pass
    assert nodes.now_s >= NOTHING_S and "did not answer" in settled.reason


def test_a_folder_that_cannot_be_read_for_a_moment_is_read_again() -> None:
    def stale(now_s: float) -> FolderLook:
        return sees(one(4)) if now_s > 3 else FolderLook(trouble="'/ckpt' cannot be listed: Stale file handle")

    assert step_of(Nodes(stale)) == 4


def test_a_folder_that_cannot_be_read_at_all_does_not_mean_from_the_beginning() -> None:
    forbidden = FolderLook(trouble="'/ckpt' cannot be listed: Permission denied", may_pass=False)
    nodes = Nodes(forbidden, sees())
    settled = nodes.choose()
    assert isinstance(settled, Nothing) and not settled.may_pass and nodes.now_s == 0.0
    assert "node-0: '/ckpt' cannot be listed: Permission denied" in settled.reason
    passing = Nodes(FolderLook(trouble="'/ckpt' cannot be listed: Input/output error"))
    settled = passing.choose()
    assert isinstance(settled, Nothing) and settled.may_pass and TROUBLE_S <= passing.now_s < TROUBLE_S + 3


def test_a_folder_that_was_open_before_and_is_refused_for_a_moment_does_not_end_the_job() -> None:
    last = ResumePoint(source="storage", step=4, uuid="u4", name="step-4")
    refused = FolderLook(trouble="https://host/run cannot be listed: 403 Forbidden", may_pass=False)
    assert step_of(Nodes(lambda now_s: sees(one(4)) if now_s > 5 else refused, last=last)) == 4
    nodes = Nodes(refused, last=last)
    settled = nodes.choose()
    assert isinstance(settled, Nothing) and settled.may_pass and nodes.now_s >= TROUBLE_S


def test_a_store_that_the_job_has_started_from_may_be_away_for_minutes() -> None:
    """A NameNode fails over. Each restart that is given up meanwhile is one of three."""
    last = ResumePoint(source="storage", step=4, uuid="u4", name="step-4")
    away = FolderLook(trouble="hdfs://nn/run cannot be listed: nothing moved for 10 s")
    back = Nodes(lambda now_s: sees(one(4)) if now_s > OUTAGE_S - 20 else away, last=last)
    back.choosing.folder = "hdfs://nn/run"
    assert step_of(back) == 4
    never = Nodes(away, last=last)
    never.choosing.folder = "hdfs://nn/run"
    settled = never.choose()
    assert isinstance(settled, Nothing) and settled.may_pass and never.now_s >= OUTAGE_S
    first = Nodes(away)
    first.choosing.folder = "hdfs://nn/run"
    assert isinstance(first.choose(), Nothing) and first.now_s < OUTAGE_S, "the URL may be wrong"


def test_checkpoints_that_cannot_be_used_are_no_reason_to_begin_anew() -> None:
    known = {"u3": PassedOver(step=3, uuid="u3", name="step-3", why="rank 0: unit 1 has a wrong digest")}
    for views in ([sees(one(2, "part x is missing"), one(3))], [sees(one(2, "part x is missing"), one(3))] * 2):
        settled = Nodes(*views, avoid=known).choose()
        assert isinstance(settled, Nothing) and not settled.may_pass
        assert "step 3: rank 0: unit 1 has a wrong digest" in settled.reason and "part x is missing" in settled.reason
        assert "move them away to start from the beginning" in settled.reason
    ruined = SeenCheckpoint(name="step-9", created_s=NOW_UNIX_S, fault="its manifest is damaged")
    settled = Nodes(sees(ruined)).choose()
    assert isinstance(settled, Nothing) and "step-9: its manifest is damaged" in settled.reason


def test_a_folder_that_was_not_empty_when_the_job_began_is_not_mounted() -> None:
    last = ResumePoint(source="storage", step=7, uuid="u7", name="step-7")
    settled = Nodes(sees(), sees(), last=last).choose()
    assert isinstance(settled, Nothing) and "an earlier attempt started from step 7 in /ckpt" in settled.reason
    choice = chosen(Nodes(sees(one(5)), last=last))
    assert choice.seen == one(5)
    assert [(each.step, each.why) for each in choice.passed_over] == [(7, "it is not there any more")]


@pytest.mark.parametrize("count", [1, 2])
def test_a_folder_in_which_the_job_has_saved_and_that_is_empty_now_is_not_mounted(count: int) -> None:
    saved = SavedCheckpoint(step=30, uuid="u30", name="step-30", created_unix_s=NOW_UNIX_S)
    nodes = Nodes(*[sees()] * count, saved=saved)
    settled = nodes.choose()
    assert isinstance(settled, Nothing) and settled.may_pass and nodes.now_s >= TROUBLE_S
    assert "an earlier attempt saved step 30 in /ckpt, where no checkpoint is any more" in settled.reason
    back = Nodes(*[lambda now_s: sees(one(30)) if now_s > 5 else sees()] * count, saved=saved)
    assert step_of(back) == 30, "a mount may come back"


def test_what_was_removed_of_a_jobs_checkpoints_is_no_trouble_as_long_as_one_is_left() -> None:
    saved = SavedCheckpoint(step=30, uuid="u30", name="step-30", created_unix_s=NOW_UNIX_S)
    nodes = Nodes(sees(one(20)), saved=saved)
    choice = chosen(nodes)
    assert (choice.seen, nodes.now_s) == (one(20), 0.0)
    assert [(each.step, each.why) for each in choice.passed_over] == [(30, "it is not there any more")]
    assert chosen(Nodes(sees(one(30)), sees(), saved=saved)).seen == one(30), "one node that sees them is enough"


def test_older_ones_are_asked_for_where_the_newest_few_are_not_enough() -> None:
    faulty = [one(step, "a part is missing") for step in range(2, 10)]
    nodes = Nodes(lambda now_s: sees(*faulty, left_out=1))

    def answer(now_s: float) -> FolderLook:
        return sees(*faulty, one(1)) if nodes.choosing.most > 8 else sees(*faulty, left_out=1)

    nodes.views["node-0"] = answer
    assert step_of(nodes) == 1
    assert nodes.asked[0].most == 64 <= MOST_OF_ALL


# --- folders that are not one


def test_where_one_node_has_a_folder_of_its_own_the_others_decide_and_all_are_told() -> None:
    nodes = Nodes(sees(one(2), one(3)), sees(), sees())
    choice = chosen(nodes)
    assert choice.seen == one(3), "rank 0 alone saves and loads: it must not begin anew"
    assert choice.unsure == ("node-1 does not see it", "node-2 does not see it")
    assert choice.apart == {"node-1", "node-2"}
    assert nodes.now_s <= LEAST_S + 3
    again = Nodes(sees(one(2), one(3)), sees(), sees(), apart=set(choice.apart))
    assert step_of(again) == 3
    assert again.now_s == 0.0, "it is known by now"


def test_a_first_checkpoint_that_one_node_does_not_see_yet_is_waited_for() -> None:
    def late(now_s: float) -> FolderLook:
        return sees(one(1, age_s=1)) if now_s > 20 else sees()

    nodes = Nodes(sees(one(1, age_s=1)), late)
    assert chosen(nodes).apart == frozenset() and nodes.now_s > 20


def test_a_node_that_was_apart_and_shares_the_folder_now_decides_again() -> None:
    nodes = Nodes(sees(one(1), one(2)), sees(one(1)), apart={"node-1"})
    assert step_of(nodes) == 1


def test_nodes_that_each_save_their_own_start_at_the_newest_step_that_all_have() -> None:
    def own(node: str, *steps: int) -> FolderLook:
        return sees(*(one(step, uuid=f"{node}{step}") for step in steps))

    nodes = Nodes(own("a", 1, 2, 3), own("b", 1, 2), own("c", 1, 2, 3))
    choice = chosen(nodes)
    assert choice.seen is not None and (choice.seen.step, choice.is_own) == (2, True)
    again = Nodes(own("a", 2, 3), own("b", 2), own=True)
    assert step_of(again) == 2 and again.now_s == 0.0

    assert choice.passed_over == (PassedOver(step=3, uuid="a3", name="step-3", why="node-1 has none of it"),), (
        "each step once, and nothing of the step that was chosen"
    )
    assert choice.unsure == ()


def test_of_nodes_that_save_their_own_some_may_share_a_folder() -> None:
    shared = sees(one(1), one(2), one(3))
    choice = chosen(Nodes(shared, shared, sees(one(2, uuid="c2"))))
    assert choice.seen is not None and (choice.seen.step, choice.is_own) == (2, True)
    assert [(each.step, each.why) for each in choice.passed_over] == [(3, "node-2 has none of it")]


def test_of_nodes_that_save_their_own_a_damaged_one_is_passed_over_on_all() -> None:
    views = [sees(*(one(step, uuid=f"{node}{step}") for step in (1, 2))) for node in "ab"]
    known = {"b2": PassedOver(step=2, uuid="b2", name="step-2", why="rank 1 on node-1: a wrong digest")}
    choice = chosen(Nodes(*views, avoid=known, own=True))
    assert choice.seen is not None and (choice.seen.step, choice.is_own) == (1, True)
    assert [(each.step, each.why) for each in choice.passed_over] == [(2, "rank 1 on node-1: a wrong digest")]


@pytest.mark.parametrize(
    "views",
    [
        (sees(one(30)), sees(one(10, uuid="b10"))),
        (sees(one(30)), sees(one(30)), sees(one(10, uuid="left over"))),
        (sees(one(30)), sees(one(30, "a part is missing"), one(10, uuid="b10"))),
    ],
)
def test_with_nothing_in_common_none_starts_from_what_is_not_there(views: tuple[FolderLook, ...]) -> None:
    nodes = Nodes(*views)
    settled = nodes.choose()
    assert isinstance(settled, Nothing) and settled.may_pass and nodes.now_s <= DELAY_S + 3
    assert "the nodes have no checkpoint and no step in common in /ckpt (node-0" in settled.reason
    assert "step 30" in settled.reason and "step 10" in settled.reason
    assert "give --ckpt-dir a folder that all of them see" in settled.reason


def test_with_nothing_in_common_each_node_has_its_reason() -> None:
    settled = Nodes(sees(one(30)), sees(one(10, uuid="b10"), one(30, "a part is missing")), sees()).choose()
    assert isinstance(settled, Nothing)
    assert "(node-0 has step 30; node-1 has step 30 (a part is missing), step 10)" in settled.reason, (
        "a node without any does not decide"
    )


# --- whatever nodes see

STEPS = st.integers(1, 6)
FAULTS = st.sampled_from(["", "", "", "a part is missing", None])
CHECKPOINTS = st.dictionaries(STEPS, FAULTS, max_size=6)
VIEWS = st.one_of(CHECKPOINTS, CHECKPOINTS, CHECKPOINTS, st.none(), st.just("trouble"))


def view_of(checkpoints: Mapping[int, str | None] | str | None) -> FolderLook | None:
    if checkpoints is None:
        return None
    if isinstance(checkpoints, str):
        return FolderLook(trouble=checkpoints)
    return sees(*(one(step, fault, age_s=30) for step, fault in checkpoints.items()))


@given(st.lists(VIEWS, min_size=1, max_size=5), st.sets(STEPS, max_size=3), st.integers(0, 2**32), st.booleans())
def test_whatever_nodes_see_all_start_at_one_step_that_is_whole_or_not_at_all(
    views: list[Mapping[int, str | None] | str | None], damaged: set[int], seed: int, settles: bool
) -> None:
    """Views of one folder, some of them old: each node sees a part of what there is, and all of it later if it `settles`."""
    rng = random.Random(seed)
    known = {f"u{step}": PassedOver(step=step, uuid=f"u{step}", name=f"step-{step}", why="damage") for step in damaged}
    there: dict[int, str | None] = {}
    for view in views:
        for step, fault in view.items() if isinstance(view, dict) else ():
            is_whole = there.get(step) == "" or fault in ("", None)
            there[step] = "" if is_whole else fault

    def moving(first: Mapping[int, str | None] | str | None, at_s: float) -> Callable[[float], FolderLook | None]:
        return lambda now_s: view_of(there if settles and now_s >= at_s else first)

    nodes = Nodes(*(moving(view, rng.choice([0.0, 0.5, 5.0, 40.0])) for view in views), avoid=known)
    settled = nodes.choose()
    assert nodes.now_s <= NOTHING_S + DELAY_S + ANSWER_S, "no choice takes for ever"
    looks = [asked.look for asked in nodes.choosing.asked.values()]
    usable = {step for step, fault in there.items() if fault == ""} - damaged
    if isinstance(settled, Nothing):
        alike = [{each.step for each in look.seen} for look in looks if look is not None and look.seen]
        has_common = bool(alike) and bool(set.intersection(*alike) & usable)
        assert not has_common or any(look is None or look.trouble for look in looks) or any(map(_has_fault, looks))
        return
    if settled.seen is None:
        assert all(look is not None and not look.trouble and not look.seen for look in looks)
        assert not there, "training is thrown away"
        return
    assert settled.seen.step not in damaged, "what is passed over never comes back"
    assert settled.seen.step in usable
    answered = [look for look in looks if look is not None and look.seen]
    wholes = [{each.uuid for each in look.seen if each.fault == ""} for look in answered]
    common = set.intersection(*wholes) - set(known) if wholes else set()
    if common:
        assert settled.seen.uuid in common, "all that see the folder see it whole"
        assert settled.seen.uuid == max(common), "and it is the newest of those"
    assert not settled.is_own or len({each.uuid for look in answered for each in look.seen}) > 1


def _has_fault(look: FolderLook | None) -> bool:
    return look is not None and any(each.fault != "" for each in look.seen)


# --- a folder that is a URL -------------------------------------------------------------------------------------------


def at_a_url(*views: FolderLook | Callable[[float], FolderLook | None] | None) -> Nodes:
    nodes = Nodes(*views)
    nodes.choosing.folder = "hdfs://nn/run"
    return nodes


def test_a_node_that_cannot_look_at_a_url_for_a_moment_is_asked_again() -> None:
    def back_after_5_s(now_s: float) -> FolderLook:
        return sees(one(7)) if now_s >= 5 else FolderLook(trouble="it cannot be listed: no route")

    nodes = at_a_url(sees(one(7)), back_after_5_s)
    choice = nodes.choose()
    assert isinstance(choice, ResumeChoice) and choice.seen is not None
    assert (choice.seen.step, choice.unsure) == (7, ())
    assert 5 <= nodes.now_s < TROUBLE_S
    assert all(asked.nodes == ("node-1",) and "no route" in asked.why for asked in nodes.asked)


def test_one_that_never_can_is_said_and_not_waited_for_beyond_that() -> None:
    nodes = at_a_url(sees(one(7)), FolderLook(trouble="it cannot be listed: no route"))
    choice = nodes.choose()
    assert isinstance(choice, ResumeChoice) and choice.seen is not None
    assert choice.unsure == ("node-1: it cannot be listed: no route",)
    assert TROUBLE_S <= nodes.now_s < TROUBLE_S + 5


def test_one_that_may_not_look_at_all_is_not_waited_for() -> None:
    nodes = at_a_url(sees(one(7)), FolderLook(trouble="it cannot be listed: no permission", may_pass=False))
    assert isinstance(nodes.choose(), ResumeChoice)
    assert nodes.now_s < TROUBLE_S


def test_the_beginning_is_not_where_it_starts_while_a_node_cannot_look_at_the_url() -> None:
    """Only that node would have seen that the others' proxy, say, answers for a store that is not there."""
    nodes = at_a_url(sees(), FolderLook(trouble="it cannot be listed: no route"))
    assert isinstance(nodes.choose(), Nothing)
