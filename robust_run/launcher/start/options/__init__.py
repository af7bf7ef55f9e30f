"""The command line: the table of options, and how they become a JobSpec."""
