"""How many members a role has: what is asked for, what nodes have room for, and what queues say that is needed."""
