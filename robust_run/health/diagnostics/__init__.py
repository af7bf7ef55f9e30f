"""Stop-time checks at work: a program for each, the runner of a node, and the file with a fleet's history."""
