"""Pages that people open: one per incident, one per job. Pure functions from data to one self-contained HTML file.

Nothing on a page is fetched from anywhere, but for the live page, which asks the controller it came from. Everything that came
from a job is escaped where it is put into a page (`markup`), and a page forbids itself all scripts but its own.
"""
