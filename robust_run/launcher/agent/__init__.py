"""The agent of a node: starts and ends worker processes, observes them, and reports. Never decides."""
