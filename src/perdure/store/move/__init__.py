"""The move of all jobs from one database to another."""
