"""What perdure does to its database: operations, written once for both databases, and for sync and async code."""
