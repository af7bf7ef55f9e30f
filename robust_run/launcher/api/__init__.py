"""The controller's HTTP API, and the `robust` commands that speak to it or read what a dead job left."""
