"""Stores run operations on a database. Only this package opens connections, waits for them, or imports a driver."""
