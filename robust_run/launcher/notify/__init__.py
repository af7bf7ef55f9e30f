"""Tells others of incidents (`--notify`): a webhook or a command of the user's. Never in the way of the controller."""
