"""What a store decides: whose turn it is to read, and what the reply of a server means. Pure."""
