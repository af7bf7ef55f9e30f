"""Leader election of the controller: exactly one of the agents standing by takes over from a lost one."""
