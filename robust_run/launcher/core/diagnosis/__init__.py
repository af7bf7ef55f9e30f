"""Why a job does not train: verdicts, hangs, health, from what was observed. Pure."""
