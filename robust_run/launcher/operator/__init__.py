"""The HTTP API of the controller, the `robust` commands, and the pages of a run: for people."""
