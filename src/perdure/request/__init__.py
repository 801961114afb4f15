"""Requests of callers: options, filters, jobs, steps, times and signals."""
