"""How the lines of a journal pair up: all that shows, counts or judges a run asks here, and so says the same. Pure."""
