"""Layout of checkpoints: boxes, ranges, segments, manifests, and which are kept. Pure."""
