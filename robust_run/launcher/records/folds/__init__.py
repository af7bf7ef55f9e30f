"""How the lines of a journal pair up: whoever shows, counts or judges a run asks here, so that all say the same. Pure."""
