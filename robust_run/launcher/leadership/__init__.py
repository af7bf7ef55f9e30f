"""Who leads a job: the controller can be lost with its node, and exactly one of the agents standing by takes over."""
