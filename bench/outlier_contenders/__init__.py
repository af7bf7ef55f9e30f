"""Other ways of saying how far a machine is from its peers, each of the shape of `watch.SpreadDetector`, which did best."""
