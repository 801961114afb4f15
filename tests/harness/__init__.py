"""What tests of every directory use: processes, waiting, the PostgreSQL server."""
