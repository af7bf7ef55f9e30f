"""Job state machine: what happens to a job, as a deterministic function from (state, event, now) to actions.

No clock, process, socket, file or log in here. The controller carries the actions out and feeds back what happens; tests,
benches and the journal's replay feed the same events and must get the same actions. It begins at `step`.
"""
