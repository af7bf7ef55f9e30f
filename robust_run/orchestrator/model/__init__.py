"""Words of a job of several roles: what is told, asked and written, and the state of it all. No behaviour but reading it."""
