"""Notifications of incidents as data: where to, what, how often. Pure."""
