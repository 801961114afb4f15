"""Moving all jobs from one database to another."""
