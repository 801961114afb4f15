"""Plans, which perform operations for blocking and for async callers."""
