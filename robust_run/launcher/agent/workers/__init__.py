"""Worker processes: their environment, devices and CPUs, how they are started, watched and ended; their TCPStore."""
