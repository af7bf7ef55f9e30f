"""Peer-to-peer block transfer between nodes of a job: the origin is asked for each block once or twice, not by every node.

    assignment  pure: which nodes fetch a group of blocks from the origin
    standing    pure: which peers are asked, how long one waits for them, who got what from us
    source      what a block server asks first: the owner of a group, and whom it names
    origin      what it asks where it is our turn, or peers are too slow; before it knows them, for no more than is read
    held        what others had when they were asked, so that it does not leave the origin again
    serving     HTTP: ranges of the cache for who knows the job's token; what is not there is fetched first
    together    puts these into a block server

No node announces what it has. A group's owner is asked; it fetches what it lacks, from a node that had it before if any did, and
remembers who got the group from it, and sends the next ones there while it is busy itself: copies spread as a tree.

**Invariant:** what a peer sends is compared with the block map before it is kept or handed on, and no wait for a peer is
without a limit.
"""
