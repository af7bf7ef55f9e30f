"""A job in virtual time: the real core decides, hosts, faults and people are simulated. `world` puts it together."""
