"""Who leads when nodes are lost, cut off, stopped or slow: decisions of voters in virtual time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from voters import Voters

from robust_run.orchestrator.model.node_words import GONE_S, KILL_S, LEASE_S
from robust_run.orchestrator.model.succession_words import LEAD_S, STAGGER_S, VOTE_WAIT_S, Resigned
from robust_run.orchestrator.rules.raft.members import LOST_S
from robust_run.orchestrator.rules.raft.state import Heard, Leaves, Resign

WELL_S = 40.0
"""After so long in which nothing is broken, somebody leads."""


def well(count: int = 3, seed: int = 1) -> Voters:
    voters = Voters(count, seed)
    voters.settle(4)
    assert voters.leader() == "n0"
    return voters


@settings(max_examples=150, deadline=None)
@given(count=st.sampled_from((3, 4, 5)), seed=st.integers(0, 1 << 40), steps=st.integers(50, 1200))
def test_no_two_ever_lead_and_no_committed_entry_is_lost(count: int, seed: int, steps: int) -> None:
    """Crashes, restarts, stops, cuts, delays, clocks of other speeds. The checks are in `Voters`."""
    voters = Voters(count, seed)
    for _ in range(steps):
        voters.random_step()
    voters.settle(WELL_S)
    leader = voters.leader()
    assert leader, "nobody leads although nothing is broken"
    committed = len(voters.truth)
    assert voters.write(leader)
    voters.settle(3)
    assert all(each.state.committed == voters.all[leader].state.last for each in voters.all.values())
    assert len(voters.truth) >= committed


def test_when_the_leader_is_silent_another_leads_before_the_lease_of_nodes_is_over() -> None:
    voters = well()
    voters.die("n0")
    began_s = voters.now_s
    while not voters.leader():
        voters.wait(0.25)
        voters.deliver_all()
    assert voters.now_s - began_s < LEASE_S / 2 + STAGGER_S
    assert voters.leader() == "n1"


def test_a_leader_that_is_cut_off_stops_before_another_can_lead() -> None:
    voters = well()
    voters.cut = {frozenset(("n0", "n1")), frozenset(("n0", "n2"))}
    stopped_s = None
    began_s = voters.now_s
    while not voters.leader() or voters.leader() == "n0":
        voters.wait(0.25)
        voters.deliver_all()
        if stopped_s is None and voters.leader() != "n0":
            stopped_s = voters.now_s
    assert stopped_s is not None
    assert stopped_s - began_s < LEAD_S + 1
    assert voters.now_s > stopped_s


def test_a_leader_that_stood_still_writes_nothing_when_it_goes_on_and_follows() -> None:
    voters = well()
    voters.stop("n0")
    while voters.leader() in ("", "n0"):
        voters.wait(0.25)
        voters.deliver_all()
    voters.go_on("n0")
    assert not voters.write("n0")
    before = dict(voters.truth)
    voters.settle(5)
    assert voters.leader() == "n1"
    assert all(voters.truth[index] == entry for index, entry in before.items())


def test_a_leader_whose_process_is_started_again_leads_on_at_once() -> None:
    voters = well()
    voters.die("n0")
    voters.settle(1)
    assert voters.leader() == "n0"


def test_a_leader_that_resigns_is_followed_at_once_by_one_that_has_all() -> None:
    voters = well()
    voters.die("n2")
    voters.write("n0")
    pass_time(voters, 1)
    committed = len(voters.truth)
    voters.start("n2")  # it lacks the last entry until it has heard the leader
    voters.tell("n0", Resign())
    assert not voters.leader()
    pass_time(voters, 12)
    assert voters.leader() == "n1"
    assert len(voters.truth) > committed


def test_where_all_hear_of_it_that_takes_a_moment() -> None:
    voters = well()
    voters.last_words = True
    voters.tell("n0", Resign())
    pass_time(voters, 1)
    assert voters.leader() == "n1"
    voters.settle(20)
    assert (voters.leader(), voters.elections) == ("n1", 2)


def test_the_vote_of_who_resigned_is_there_as_soon_as_its_process_is() -> None:
    voters = well(4)
    voters.die("n3")
    pass_time(voters, 5)
    voters.last_words = True
    voters.tell("n0", Resign())
    voters.start("n0")
    voters.all["n0"].state.stands = False
    pass_time(voters, 4)
    assert voters.leader() in ("n1", "n2"), "two of four are no majority"


def test_a_leader_that_resigns_is_not_elected_again_while_it_leaves() -> None:
    voters = well()
    voters.tell("n0", Resign())
    voters.die("n1")
    voters.die("n2")
    voters.start("n0")
    voters.all["n0"].state.stands = False  # as a node that leaves says
    pass_time(voters, 30)
    voters.start("n1")
    pass_time(voters, 20)
    assert voters.leader() == "n1", "it votes for another"


def test_others_can_lead_on_where_they_are_a_majority_without_the_leader() -> None:
    def followers(voters: Voters) -> str:
        one = voters.all["n0"]
        return one.state.followers(one.local_s(voters.now_s))

    for count, lost, left in ((3, 0, "ready"), (3, 1, "not yet"), (5, 1, "ready"), (5, 2, "not yet"), (4, 1, "ready")):
        voters = well(count)
        for name in voters.names[1 : 1 + lost]:
            voters.die(name)
        pass_time(voters, 5)
        assert (voters.leader(), followers(voters)) == ("n0", left), (count, lost)
    for count, told, left in ((3, 1, "none"), (5, 1, "ready"), (5, 3, "none")):
        voters = well(count)
        for name in voters.names[1 : 1 + told]:
            voters.all["n0"].state.others[name].is_leaving = True
        assert followers(voters) == left, (count, told)
    voters = well(3)
    voters.disconnect("n0", "n1")
    assert followers(voters) == "not yet", "it may be back in a moment"
    voters = well(3)
    voters.die("n1")
    pass_time(voters, LOST_S + 5)
    assert followers(voters) == "none", "the leader alone counts"


def test_who_does_not_lead_resigns_from_nothing() -> None:
    voters = well()
    voters.tell("n1", Resign())
    pass_time(voters, 10)
    assert (voters.leader(), voters.elections, voters.all["n1"].state.stands) == ("n0", 1, True)


def test_a_resignation_of_an_earlier_term_or_of_another_changes_nothing() -> None:
    voters = well()
    voters.tell("n1", Heard("n0", Resigned(term=0)))
    voters.tell("n1", Heard("n2", Resigned(term=1)))
    pass_time(voters, 10)
    assert (voters.leader(), voters.elections) == ("n0", 1)


def test_a_voter_that_was_away_for_long_deposes_nobody_when_it_is_back() -> None:
    voters = well()
    voters.cut = {frozenset(("n2", "n0")), frozenset(("n2", "n1"))}
    for _ in range(400):
        voters.wait(0.25)
        voters.deliver_all()
    elections = voters.elections
    voters.settle(10)
    assert (voters.leader(), voters.elections) == ("n0", elections)


def test_the_side_with_fewer_voters_decides_nothing() -> None:
    voters = well(5)
    voters.cut = {frozenset((a, b)) for a in ("n0", "n1") for b in ("n2", "n3", "n4")}
    committed = len(voters.truth)
    voters.write("n0")
    for _ in range(100):
        voters.wait(0.25)
        voters.deliver_all()
    assert voters.leader() == "n2"
    assert [e.data for i, e in voters.truth.items() if i > committed and e.data.startswith(b"n0")] == []
    voters.settle(10)
    assert voters.all["n0"].log == voters.all["n2"].log


def test_a_voter_that_lacks_what_others_have_forgotten_gets_a_whole_log() -> None:
    voters = well()
    voters.die("n2")
    for _ in range(30):
        voters.write("n0")
    for _ in range(8):
        voters.wait(0.25)
        voters.deliver_all()
    voters.drop("n0")
    voters.settle(5)
    assert voters.all["n2"].state.last == voters.all["n0"].state.last
    assert voters.all["n2"].log == voters.all["n0"].log


def pass_time(voters: Voters, seconds: float) -> None:
    """Let those that can go on; connections that are possible are there."""
    for _ in range(int(seconds * 4)):
        for here in voters.names:
            for there in voters.names:
                if here != there:
                    voters.connect(here, there)
        voters.deliver_all()
        voters.wait(0.25)


def test_voters_that_are_lost_one_after_the_other_end_no_job() -> None:
    voters = well(5)
    for lost in ("n4", "n3", "n2", "n1"):
        voters.die(lost)
        pass_time(voters, LOST_S + 5)
        assert voters.leader() == "n0"
    assert voters.all["n0"].state.voters == ("n0",)
    voters.die("n0")
    voters.start("n0")
    pass_time(voters, 2)
    assert voters.leader() == "n0", "it needs nobody else"


def test_a_voter_that_comes_back_counts_again() -> None:
    voters = well()
    voters.die("n2")
    pass_time(voters, LOST_S + 5)
    assert voters.all["n0"].state.voters == ("n0",)
    voters.write("n0")
    voters.start("n2")
    pass_time(voters, 5)
    assert sorted(voters.all["n0"].state.voters) == ["n0", "n1", "n2"]
    voters.die("n0")
    pass_time(voters, 15)
    assert voters.leader() in ("n1", "n2")


def test_nodes_that_are_told_to_leave_at_the_same_time_take_no_majority_with_them() -> None:
    """A job that shrinks goes on, as it did before there were voters."""
    for count in (3, 4, 5):
        voters = well(count)
        leaving = voters.names[1:] if count == 3 else voters.names[2:]
        for name in leaving:
            voters.tell("n0", Leaves(name))
        for name in leaving:
            while name in voters.all[name].state.voters:
                voters.deliver_all()
                voters.wait(0.25)
                assert voters.now_s < 10, f"{name} is still needed"
            voters.die(name)
        pass_time(voters, LOST_S + 5)
        assert voters.leader() == "n0"
        assert voters.write("n0")


def test_one_that_is_started_again_where_it_was_told_to_leave_counts_again() -> None:
    voters = well(3)
    voters.tell("n0", Leaves("n2"))
    pass_time(voters, 2)
    assert voters.all["n0"].state.voters == ("n0",)
    pass_time(voters, 10)
    assert voters.all["n0"].state.voters == ("n0",), "it is here, and about to go"
    voters.tell("n0", Leaves("n2", is_leaving=False))
    pass_time(voters, 5)
    assert sorted(voters.all["n0"].state.voters) == ["n0", "n1", "n2"]


def test_who_was_taken_out_leads_nowhere_with_what_it_knew() -> None:
    """n1 and n2 have gone on without n0; n0 knows of three voters, and finds nobody who votes for it."""
    voters = well()
    voters.cut = {frozenset(("n0", "n1")), frozenset(("n0", "n2"))}
    pass_time(voters, LOST_S + 30)
    leads = voters.leader()
    assert voters.all[leads].state.voters == (leads,)
    other = "n2" if leads == "n1" else "n1"
    voters.die(leads)
    voters.cut = set()
    voters.start("n0")
    pass_time(voters, 60)
    assert voters.leader() == "", "what only the lost leader had may have been told"
    voters.start(leads)
    pass_time(voters, 15)
    assert (voters.leader(), voters.all[other].state.leader) == (leads, leads)


def test_no_node_runs_a_member_when_the_new_leader_takes_it_for_gone() -> None:
    """The old leader may answer a node until it stops itself, which is at most `LEAD_S` after the last vote for another."""
    assert LEAD_S + LEASE_S + KILL_S < GONE_S
    assert VOTE_WAIT_S > 1.1 * LEAD_S
    assert VOTE_WAIT_S + 2 * STAGGER_S < LEASE_S
