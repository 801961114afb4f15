"""Handlers in child processes: the pool, the child, and the protocol between them."""
