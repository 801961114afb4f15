"""Benchmarks that hold perdure to its promises of speed: `make bench`, `make bench-core`, `make bench-depth`.

Each prints one JSON line per figure and ends with status 1 if a figure misses its target. Machines differ,
and the same one from minute to minute; so every target compares two things that were measured in turns.
"""
