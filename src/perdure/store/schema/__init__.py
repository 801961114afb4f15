"""Migrations: their files, their order, and how they are applied."""
