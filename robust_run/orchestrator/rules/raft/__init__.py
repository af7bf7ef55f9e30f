"""The core of Raft, as a pure function; `robust_run.orchestrator.succession` says what it is for, and carries it out."""
