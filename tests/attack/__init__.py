"""Attacks on the whole system: what a hostile role, row, name or input can do."""
