"""Code updates of roles: which version a role has, how it reaches its members, and where code is kept once for all of them."""
