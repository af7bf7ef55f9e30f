"""The fleet's memory: a folder in which each job that is over has left its facts. Files only; decides nothing."""
