"""The per-user warm process: found, leased, started and stopped (`robust warm`)."""
