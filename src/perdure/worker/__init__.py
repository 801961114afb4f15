"""The side of the ledger that runs jobs."""
