"""The queues a user would pick instead, one script for each, run by the Python of its own virtual environment.

They import neither perdure nor the rest of the benchmarks: only ``protocol``, which needs nothing but Python.
Settings are the best that were found for each (`docs/performance.md`); per-job logging is off everywhere.
"""
