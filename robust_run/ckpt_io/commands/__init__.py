"""`robust ckpt`: list, verify, prune, repair, mount, copy."""
