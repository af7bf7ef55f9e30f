"""The controller of a job: decides through the core, keeps the journal, speaks to agents, and can be taken over."""
