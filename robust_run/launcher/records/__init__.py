"""What a run leaves: journal, run directory, incidents, evictions, the token. Files only; decides nothing."""
