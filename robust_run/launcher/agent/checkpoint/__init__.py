"""What an agent does about checkpoints that are read and written as files: watching, fetching ahead, mounting."""
