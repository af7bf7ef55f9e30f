"""Who leads a job of several roles when the node that leads is lost: voters keep what is decided, and elect.

A job of three nodes or more has **voters**: the first `MOST_VOTERS` of the nodes that it began with. Each keeps the whole log,
which is the journal and all queues. An entry is *committed* once a majority of the voters has it; nothing that follows from it
leaves the leader before: no answer to a worker, no order to a node. Leaders are numbered by **term**. This is the core of Raft
(Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", USENIX ATC 2014, section 5; the vote before the
vote and leases: Ongaro's thesis, sections 9.6 and 6.4.1), with log lines in the place of a state machine's commands.

**How a node knows that the leader is gone.** It does not, and need not. Silence is all it has, and silence is also a cut cable, a
stopped process and a machine that is too busy. So nothing is ended by an election: members run on under their node's lease
(`nodes.lease`), workers connect again, and an election that was not needed costs some seconds in which queues do not answer. Only
what *cannot* run any more is started elsewhere: the new leader gives each node `GONE_S` from the moment at which it leads, and by
then a node that hears only the old one has ended its members by itself.

**What two nodes see differently.** The old leader, alone behind a cut cable, sees a job without nodes; the others see a job
without a leader. Only the side with the majority of the voters can commit, and so only that side acts. The old leader stops by
its own clock `LEAD_S` after it sent the newest sign of life that a majority has answered; a voter gives nobody its vote for
`VOTE_WAIT_S` after it heard the leader, which is longer. So no two lead at a time, not even in what needs no entry, such as the
lease of a node.

    leader    newest sign of life that a majority answered, by when it was SENT
              + 6 s   it answers nobody any more, and stops
    voter     + 8 s   it may vote for another, or stand for election (+ 1 s for each voter before it in line)
    node      + 20 s  it ends its members if no leader has answered it; + 25 s its guard kills them
    leader, new       45 s after it leads, a node that has not come is gone: its members start elsewhere

**What comes back.** A leader that stood still for a minute finds its lease over before it does anything: each thing that it
would say or write asks first (`Replica.may_act`, `Replica.append`). Its process ends, and its guard starts it as a voter like
the others. What it had decided and no majority has is cut from its log. Its own members have run under the same lease as those
of any node: its guard has killed them. A voter that was away asks whether it would be elected before it counts up the term, so
that it does not depose a leader that is well.

**What a starved machine does.** All of this late. A leader that answers later than `LEAD_S` is replaced, members stay; a vote
that comes late is for a term that is over. Times of different machines are never compared.

**What is not survived.** A majority of the voters lost at the same time, or apart: nobody leads, members end after their lease.
Nodes that are lost one after the other are taken out (`members`). Two nodes have no majority without each other: there one leads,
and if it is lost the job ends. A voter whose machine was
booted anew, or whose folder is gone, may have lost what it had confirmed, so it votes no more (`log`); it runs members."""
