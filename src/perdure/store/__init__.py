"""Stores run operations on a database. Only this package opens connections, waits for answers, or imports a driver."""
