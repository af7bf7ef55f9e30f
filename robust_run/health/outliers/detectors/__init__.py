"""Ways of saying how far a machine is from its peers, all of one shape (`protocol`). The default was chosen by measurement."""
