"""Where workers run: this machine as it is, a container image, or an environment with a set-up done."""
