"""Which block is fetched when and from where, and how an image is mounted. Pure."""
