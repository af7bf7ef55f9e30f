"""The process that outlives the leader of a job of several roles, and what both say to each other."""
