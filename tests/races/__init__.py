"""Several processes and threads at one database, all at once."""
