"""The version of this package, and of the files it writes."""

__version__ = "0.1.0"

#: Version of the run directory's files (journal, incidents). A reader refuses a newer one instead of guessing.
RUN_DIR_SCHEMA = 1
