"""Where the time of a start goes, as an agent and its controller see it. Imported after the first workers were started."""
