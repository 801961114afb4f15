"""Whole stores that are moved from one database to another, by processes that are killed."""
