"""The `robust` commands. Bodies import what they need: `robust` must start fast."""
