"""The worker: claims jobs, runs their handlers and records the outcomes."""
