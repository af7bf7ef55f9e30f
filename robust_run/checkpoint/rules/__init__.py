"""What is decided about checkpoints of a program: how often, by which settings, what a state consists of. Pure."""
