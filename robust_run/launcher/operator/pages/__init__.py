"""Pages of a run, drawn from its directory."""
