"""The recovery ladder of a job: diagnose, reattempt, roll back, replay, evict. Pure."""
