"""The connection between an agent and the controller: messages, frames, who may speak."""
