"""The keeper at work: one thread that does what workers and the agent ask for, and what it minds for each of them."""
