"""Concurrent processes and threads on one database."""
