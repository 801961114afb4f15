"""Benchmarks that hold perdure to its promises of speed: `make bench-core`, `make bench-depth`.

Each prints one JSON line per figure and ends with status 1 if a figure misses its target. Machines differ, and the same
one from minute to minute; so every target is a ratio of two things measured in turns, never a number of its own.
"""
