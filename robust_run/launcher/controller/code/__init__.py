"""Code versions, the controller's side: which node needs what, and how it gets there."""
