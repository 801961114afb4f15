"""What perdure does to its database: operations, written once for both databases and both colours of function."""
