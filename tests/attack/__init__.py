"""Attacks on the whole: what a hostile neighbour, row, name or input can do."""
