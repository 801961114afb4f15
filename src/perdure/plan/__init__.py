"""Plans: generators that perform operations for blocking and for async callers."""
