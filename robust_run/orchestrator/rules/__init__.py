"""What is decided in a job of several roles: pure functions of state, event and now. `core` puts the others together."""
